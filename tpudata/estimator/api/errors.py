"""The estimator's errors, and TensorFlow's in one line. They are TpudataErrors, and also the types that ported programs catch.

Plain TypeError and ValueError are for the arguments of a call; these are for errors during a run.
"""

import re
from typing import Any

import tensorflow as tf

from tpudata.errors import TpudataError, UsageError
from tpudata.estimator.api.findings import Finding

# Text that TensorFlow puts around the reason: in a session the reason follows the line of the operation, else it is in brackets.
_OF_OPERATION = re.compile(r"\nNode: .*\n(.*)")
_AROUND = re.compile(r"^\{\{.*?\}\} | \[Op:\w+\]")


def reason(error: tf.errors.OpError) -> str:
    """Return the reason of an operation's error in one line, without the place where it was built."""
    found = _OF_OPERATION.search(error.message)
    line = found[1] if found else error.message.strip().partition("\n")[0]
    return _AROUND.sub("", line)


class CheckpointError(TpudataError, ValueError):
    """A checkpoint is missing, cannot be read, or does not fit the model."""


class CheckpointNotFoundError(CheckpointError, tf.errors.NotFoundError):  # type: ignore[misc]  # TensorFlow is untyped
    """A checkpoint, or a variable of it, is missing.

    It is a NotFoundError, too: programs that evaluate each checkpoint as it appears catch it for one that was deleted.
    """

    def __init__(self, message: str) -> None:
        tf.errors.NotFoundError.__init__(self, None, None, message)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.message,)


class ArgumentTypeError(TypeError, ValueError):
    """An argument of another type, for which the original raised a ValueError."""


class ModelFnError(TpudataError):
    """model_fn does not take what an estimator gives, or returns what it cannot use.

    Errors from inside a model_fn's own code stay as they are.
    """


class ModelFnTypeError(ModelFnError, TypeError):
    """The ModelFnError for a value of another type."""


class ModelFnValueError(ModelFnError, ValueError):
    """The ModelFnError for a value outside the allowed ones."""


class HostFunctionError(ModelFnValueError, RuntimeError):
    """metric_fn or host_fn does not take the tensors that it is given; in the original a RuntimeError."""


class BatchSizeError(UsageError, ValueError):
    """A batch size that the replicas cannot split."""


class RehearsalError(TpudataError):
    """A rehearsal found what a TPU would reject; the message lists all of it.

    Attributes:
        findings: these, and what would be slow on a TPU.
    """

    def __init__(self, message: str, findings: tuple[Finding, ...]) -> None:
        super().__init__(message)
        self.findings = findings

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (*self.args, self.findings)


class ClusterError(TpudataError):
    """The processes of a TF_CONFIG cluster cannot continue together: one ended, cannot be reached, or sees another model_dir."""


class TPUConnectionError(TpudataError):
    """No TPU answered, or the named one does not exist."""


class NonFiniteError(TpudataError, tf.compat.v1.train.NanLossDuringTrainingError):  # type: ignore[misc]
    """The loss or a variable became NaN or infinite; the last checkpoint is from before.

    It is a NanLossDuringTrainingError, too, which ported programs catch.
    """

    def __str__(self) -> str:
        return Exception.__str__(self)  # the v1 class has a fixed text

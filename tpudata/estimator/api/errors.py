"""The estimator's own errors, and TensorFlow's in a line. They are TpudataErrors, and also what ported programs catch.

TypeError and ValueError alone are for the arguments of a call; these are for what a run meets.
"""

import re
from typing import Any

import tensorflow as tf

from tpudata.errors import TpudataError, UsageError
from tpudata.estimator.api.findings import Finding

# What TensorFlow puts before and behind what went wrong: in a session behind the line of the operation, else between brackets.
_OF_OPERATION = re.compile(r"\nNode: .*\n(.*)")
_AROUND = re.compile(r"^\{\{.*?\}\} | \[Op:\w+\]")


def reason(error: tf.errors.OpError) -> str:
    """Return what went wrong in an operation, in one line, without where it was built."""
    found = _OF_OPERATION.search(error.message)
    line = found[1] if found else error.message.strip().partition("\n")[0]
    return _AROUND.sub("", line)


class CheckpointError(TpudataError, ValueError):
    """A checkpoint is not there, cannot be read, or does not fit the model."""


class CheckpointNotFoundError(CheckpointError, tf.errors.NotFoundError):  # type: ignore[misc]  # TensorFlow is untyped
    """A checkpoint, or a variable of it, is not there.

    It is a NotFoundError, too: programs that evaluate each checkpoint as it appears catch that of one which was deleted meanwhile.
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
        findings: those, and what a TPU would be slow at.
    """

    def __init__(self, message: str, findings: tuple[Finding, ...]) -> None:
        super().__init__(message)
        self.findings = findings

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (*self.args, self.findings)


class ClusterError(TpudataError):
    """The processes of a TF_CONFIG cluster cannot go on together: one ended, cannot be reached, or sees another model_dir."""


class TPUConnectionError(TpudataError):
    """No TPU answered, or the one that was named is not there."""


class NonFiniteError(TpudataError, tf.compat.v1.train.NanLossDuringTrainingError):  # type: ignore[misc]
    """The loss or a variable became NaN or infinite; the last checkpoint is from before.

    It is a NanLossDuringTrainingError, too, which ported programs catch.
    """

    def __str__(self) -> str:
        return Exception.__str__(self)  # the v1 class has a fixed text

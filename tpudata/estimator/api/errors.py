"""Errors of the estimator.

These are for errors during a run: TpudataErrors that are also of the types that ported programs catch. Wrong arguments of a call
raise plain TypeError and ValueError.
"""

import tensorflow as tf

from tpudata.devices.errors import ModelFnError, ModelFnValueError
from tpudata.errors import TpudataError, UsageError
from tpudata.estimator.api.findings import Finding

# What to do after a failed write, the end of several messages.
SPACE_AND_PERMISSION = "Provide space and permission, and run again."


class CheckpointError(TpudataError, ValueError):
    """A checkpoint is missing, cannot be read, or does not fit the model."""


class CheckpointNotFoundError(CheckpointError, tf.errors.NotFoundError):  # type: ignore[misc]  # TensorFlow is untyped
    """A checkpoint, or a variable of it, is missing.

    It is also a NotFoundError, which programs that evaluate each checkpoint as it appears catch for a deleted checkpoint.
    """

    def __init__(self, message: str) -> None:
        tf.errors.NotFoundError.__init__(self, None, None, message)

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle the arguments of this constructor; those of NotFoundError would not fit it."""
        return type(self), (self.message,)


class ArgumentTypeError(TypeError, ValueError):
    """An argument has the wrong type, for which TensorFlow's Estimator raised a ValueError."""


class ModelFnTypeError(ModelFnError, TypeError):
    """The ModelFnError for a value of the wrong type."""


class HostFunctionError(ModelFnValueError, RuntimeError):
    """metric_fn or host_fn does not accept its tensors; in TensorFlow's TPUEstimator a RuntimeError."""


class BatchSizeError(UsageError, ValueError):
    """A batch size that the replicas cannot split."""


class RehearsalError(TpudataError):
    """A rehearsal found parts of the program that a TPU would reject; the message lists them.

    Attributes:
        findings: all findings, including findings about code that is only slow on a TPU.
    """

    def __init__(self, message: str, findings: tuple[Finding, ...]) -> None:
        super().__init__(message)
        self.findings = findings

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle the arguments of this constructor; `args` lacks the findings."""
        return type(self), (*self.args, self.findings)


class NonFiniteError(TpudataError, tf.compat.v1.train.NanLossDuringTrainingError):  # type: ignore[misc]
    """The loss became NaN, or a variable NaN or infinite; the last checkpoint was written before that.

    It is also a NanLossDuringTrainingError, which ported programs catch.
    """

    def __str__(self) -> str:
        return Exception.__str__(self)  # The v1 class has a fixed message.

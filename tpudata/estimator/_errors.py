"""The estimator's own errors. They are TpudataErrors, and also what ported programs catch.

TypeError and ValueError alone are for the arguments of a call; these are for what a run meets.
"""

import tensorflow as tf

from tpudata.errors import TpudataError


class CheckpointError(TpudataError, ValueError):
    """A checkpoint is not there, cannot be read, or does not fit the model."""


class ModelFnError(TpudataError):
    """model_fn does not take what an estimator gives, or returns what it cannot use.

    Errors from inside a model_fn's own code stay as they are.
    """


class ModelFnTypeError(ModelFnError, TypeError):
    """The ModelFnError for a value of another type."""


class ModelFnValueError(ModelFnError, ValueError):
    """The ModelFnError for a value outside the allowed ones."""


class NonFiniteError(TpudataError, tf.compat.v1.train.NanLossDuringTrainingError):  # type: ignore[misc]
    """The loss or a variable became NaN or infinite; the last checkpoint is from before.

    It is a NanLossDuringTrainingError, too, which ported programs catch.
    """

    def __str__(self) -> str:
        return Exception.__str__(self)  # the v1 class has a fixed text

"""Errors of devices, of the processes that use them, and of code that they cannot run.

They belong to the estimator's public errors. Some have a second base, such as ValueError, by which ported programs catch them.
"""

from tpudata.errors import TpudataError, UsageError


class TPUConnectionError(TpudataError):
    """No TPU answered, or the named one does not exist."""


class ClusterConfigError(UsageError, ValueError):
    """TF_CONFIG, or a `RunConfig(tf_config=...)`, does not describe a task of a cluster."""


class ClusterError(TpudataError):
    """The processes of a TF_CONFIG cluster cannot continue: one ended, cannot be reached, or has another model_dir."""


class ModelFnError(TpudataError):
    """The arguments or the result of model_fn do not fit the estimator.

    Errors from inside the code of a model_fn are passed on unchanged.
    """


class ModelFnValueError(ModelFnError, ValueError):
    """The ModelFnError for a value that is not allowed."""

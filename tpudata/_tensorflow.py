"""The one place that decides whether TensorFlow is there."""

import importlib

from tpudata.errors import MissingExtraError


def require_tensorflow(feature: str) -> None:
    """Import TensorFlow, or say which extra brings it.

    Args:
        feature: the public name that needs it, for instance "tpudata.estimator".

    Raises:
        MissingExtraError: TensorFlow is not installed. A TensorFlow that is installed but broken raises its own
            error, since installing the extra again would not help.
    """
    try:
        importlib.import_module("tensorflow")
    except ModuleNotFoundError as error:
        if error.name != "tensorflow":
            raise
        raise MissingExtraError(feature, "tensorflow") from error

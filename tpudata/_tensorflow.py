"""Check that TensorFlow is installed."""

import importlib

from tpudata.errors import MissingExtraError


def require_tensorflow(feature: str) -> None:
    """Import TensorFlow, or raise an error that names the extra to install.

    Args:
        feature: the public name that needs it, such as "tpudata.estimator".

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

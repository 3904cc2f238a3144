"""Bundled models, and models by name.

Importing this package loads no TensorFlow; getting a model does.
"""

import difflib
import importlib
from collections.abc import Callable
from typing import Any

from tpudata.errors import UsageError

_MODULES = {"mnist_cnn": "tpudata.models.mnist_cnn"}

__all__ = ["get_model", "model_names"]


def model_names() -> list[str]:
    """Return the names of the bundled models."""
    return sorted(_MODULES)


def get_model(name: str) -> Callable[..., Any]:
    """Return the model_fn of a bundled model, or one of the user's.

    Args:
        name: a bundled model's name, or "package.module:function".

    Returns:
        The model_fn.

    Raises:
        UsageError: there is no such model, module or function; the message names the nearest.
    """
    if ":" in name:
        return _user_model(name)
    if name not in _MODULES:
        near = difflib.get_close_matches(name, _MODULES, n=1, cutoff=0.0)
        raise UsageError(
            f"There is no model {name!r}. Did you mean {near[0]!r}? Bundled are {', '.join(model_names())}; "
            "your own is given as package.module:function."
        )
    model_fn: Callable[..., Any] = importlib.import_module(_MODULES[name]).model_fn
    return model_fn


def _user_model(name: str) -> Callable[..., Any]:
    module_name, _, function_name = name.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        # Only where the module itself is missing: one that it imports is its own error.
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise
        raise UsageError(f"The model {name!r}: there is no module {error.name!r} on Python's path.") from error
    except ValueError as error:
        raise UsageError(f"The model {name!r} must be given as package.module:function.") from error
    model_fn = getattr(module, function_name, None)
    if not callable(model_fn):
        candidates = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        near = difflib.get_close_matches(function_name, candidates, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise UsageError(f"The model {name!r}: {module_name} has no function {function_name!r}.{hint}")
    result: Callable[..., Any] = model_fn
    return result

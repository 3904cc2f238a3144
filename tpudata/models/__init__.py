"""Bundled models, and models by name.

Importing this package loads no TensorFlow; getting a model does.
"""

import difflib
import importlib
import importlib.util
import sys
from collections.abc import Callable
from typing import Any

from tpudata.errors import UsageError

_MODULES = {name: f"tpudata.models.{name}" for name in ("char_lstm", "iris_mlp", "mnist_cnn", "resnet", "tiny_lm")}

__all__ = ["check_model_name", "get_model", "model_names"]


def model_names() -> list[str]:
    """Return the names of the bundled models."""
    return sorted(_MODULES)


def check_model_name(name: str) -> None:
    """Check the name of a model as far as that loads nothing.

    Args:
        name: a bundled model's name, or "package.module:function".

    Raises:
        UsageError: no bundled model has the name (names the nearest), it has not that form, or there is no such package.
    """
    if ":" not in name:
        if name not in _MODULES:
            near = difflib.get_close_matches(name, _MODULES, n=1, cutoff=0.0)
            raise UsageError(
                f"There is no model {name!r}. Did you mean {near[0]!r}? Bundled are {', '.join(model_names())}; "
                "your own is given as package.module:function."
            )
        return
    module, _, function = name.partition(":")
    if not function.isidentifier() or not all(part.isidentifier() for part in module.split(".")):
        raise UsageError(f"The model {name!r} must be given as package.module:function.")
    package = module.partition(".")[0]
    # Finding a submodule would import its package.
    if package not in sys.modules and importlib.util.find_spec(package) is None:
        raise UsageError(f"The model {name!r}: there is no module {package!r} on Python's path.")


def get_model(name: str) -> Callable[..., Any]:
    """Return the model_fn of a bundled model, or one of the user's.

    Args:
        name: a bundled model's name, or "package.module:function".

    Returns:
        The model_fn.

    Raises:
        UsageError: there is no such model, module or function; the message names the nearest.
    """
    check_model_name(name)
    if ":" in name:
        return _user_model(name)
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
    model_fn = getattr(module, function_name, None)
    if not callable(model_fn):
        candidates = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        near = difflib.get_close_matches(function_name, candidates, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise UsageError(f"The model {name!r}: {module_name} has no function {function_name!r}.{hint}")
    result: Callable[..., Any] = model_fn
    return result

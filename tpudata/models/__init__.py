"""Bundled models, and the lookup of models by name.

Importing this package does not load TensorFlow; getting a model does.
"""

import contextlib
import dataclasses
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from tpudata.console.nearest import did_you_mean
from tpudata.errors import UsageError

if TYPE_CHECKING:
    from tpudata.estimator.api.user_functions import ModelFunction

_NAMES = ("char_lstm", "iris_mlp", "mnist_cnn", "resnet", "text_classifier", "tiny_lm", "unet")
_MODULES = {name: f"tpudata.models.{name}" for name in _NAMES}
_PATH_FIX = "Run in the folder that contains it, or set PYTHONPATH."

__all__ = ["check_model_name", "get_model", "learns_label_maps", "make_model_fn", "model_names", "param_defaults"]


def model_names() -> list[str]:
    """Return the names of the bundled models."""
    return sorted(_MODULES)


def check_model_name(name: str) -> None:
    """Check the name of a model without importing anything.

    Args:
        name: a bundled model's name, or "package.module:function".

    Raises:
        UsageError: the name is not a bundled model's (the message names the nearest), has the wrong form, or its package does not
            exist.
    """
    if ":" in name:
        _check_user_model_name(name)
    # A file, or a dotted name without a function.
    elif name.endswith(".py") or name.rpartition(".")[0]:
        dotted_name = _guess_user_model_name(name)
        raise UsageError(
            f"There is no model {name!r} (expected a bundled model, or package.module:function). Pass yours as {dotted_name}."
        )
    elif name not in _MODULES:
        raise UsageError(
            f"There is no model {name!r} (expected {', '.join(model_names())}, or package.module:function of yours)."
            f"{did_you_mean(name, _MODULES)}"
        )


def _guess_user_model_name(name: str) -> str:
    """Return the form package.module:function of a file, such as package/module.py, or of a dotted name."""
    dotted_name = _convert_path_to_module(name)
    module, _, function = dotted_name.rpartition(".")
    # A file or a single name is a module, whose function is probably called model_fn.
    return f"{dotted_name}:model_fn" if name.endswith(".py") or not module else f"{module}:{function}"


def _convert_path_to_module(path: str) -> str:
    return path.removesuffix(".py").replace("/", ".").strip(".")


def _check_user_model_name(name: str) -> None:
    """Raise UsageError if a name with a colon does not have the form package.module:function, or its package does not exist."""
    module, _, function = name.partition(":")
    if module.endswith(".py"):
        dotted_name = f"{_convert_path_to_module(module)}:{function}"
        raise UsageError(
            f"The model {name!r} names a file (expected package.module:function). Name the module: {dotted_name}."
        )
    if not function.isidentifier() or not all(part.isidentifier() for part in module.split(".")):
        raise UsageError(f"The model {name!r} must have the form package.module:function.")
    package = module.partition(".")[0]
    # Finding a submodule would import its package.
    if package not in sys.modules and importlib.util.find_spec(package) is None:
        raise UsageError(f"The model {name!r}: there is no module {package!r} on Python's path. {_PATH_FIX}")


def get_model(name: str) -> Callable[..., Any]:
    """Import a model: the model_fn of a bundled model, or a function or class of the user's.

    Args:
        name: a bundled model's name, or "package.module:function".

    Returns:
        The model_fn, or a class for `make_model_fn`.

    Raises:
        UsageError: there is no such model, module or function, or the module is not valid Python.
    """
    check_model_name(name)
    if ":" in name:
        return _import_user_model(name)
    model_fn: Callable[..., Any] = importlib.import_module(_MODULES[name]).model_fn
    return model_fn


def make_model_fn(model: Callable[..., Any], params: Mapping[str, object]) -> "ModelFunction":
    """Return the model_fn of a model; a function is its own model_fn.

    Args:
        model: a function or class, from `get_model`. A class is called with `params`; the model_fn is the new object's method
            `model_fn` or, if it has none, the object itself.
        params: the model's parameters, without those that the estimator adds.

    Raises:
        UsageError: the class does not take params, or its objects cannot be called.
    """
    if not inspect.isclass(model):
        return model
    make_instance: Callable[..., Any] = model
    try:
        with contextlib.suppress(ValueError):  # A class written in C may have no signature.
            inspect.signature(make_instance).bind({})
    except TypeError as error:
        raise UsageError(
            f"The model {model.__module__}:{model.__qualname__}: its __init__ must take params, a dict, and nothing else: {error}."
        ) from error
    instance = make_instance(dict(params))
    model_fn: Callable[..., Any] | None = getattr(instance, "model_fn", instance)
    if not callable(model_fn):
        raise UsageError(
            f"The model {model.__module__}:{model.__qualname__}: its objects need a method model_fn(features, labels, "
            "mode, params), or __call__ with these."
        )
    return model_fn


def param_defaults(name: str) -> dict[str, Any] | None:
    """Return the default of each param of a bundled model, `dataclasses.MISSING` for a required one; None for a user's model.

    Raises:
        UsageError: there is no such model.
    """
    params_class = _find_params_class(name)
    return None if params_class is None else {field.name: field.default for field in dataclasses.fields(params_class)}


def learns_label_maps(name: str) -> bool:
    """Return whether a bundled model learns the class of each pixel from label maps; False for a user's model.

    Raises:
        UsageError: there is no such bundled model.
    """
    return ":" not in name and bool(_find_params_class(name).labels_are_maps)


def _find_params_class(name: str) -> Any:
    """Return the dataclass of a bundled model's params, which its module defines; None for a user's model.

    Raises:
        UsageError: there is no such model.
    """
    check_model_name(name)
    if ":" in name:
        return None
    base = importlib.import_module("tpudata.models.training.params").ModelParams
    module = importlib.import_module(_MODULES[name])
    classes = [member for member in vars(module).values() if inspect.isclass(member)]
    return next(
        candidate
        for candidate in classes
        # The module also imports base classes of its params.
        if issubclass(candidate, base) and candidate.__module__ == module.__name__
    )


def _import_user_model(name: str) -> Callable[..., Any]:
    """Import the function or class of a name package.module:function; raises what `get_model` raises."""
    module_name, _, function_name = name.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        # A missing module that the user's module imports is an error of the user's, which is raised unchanged.
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise
        raise UsageError(
            f"The model {name!r}: there is no module {error.name!r} on Python's path. {_PATH_FIX}"
        ) from error
    except SyntaxError as error:
        raise UsageError(
            f"The model {name!r}: {error.filename}, line {error.lineno}: {error.msg}. Correct it."
        ) from error
    model: Callable[..., Any] | None = getattr(module, function_name, None)
    if not callable(model):
        candidates = [key for key, member in vars(module).items() if callable(member) and not key.startswith("_")]
        hint = did_you_mean(function_name, candidates)
        raise UsageError(
            f"The model {name!r}: {module_name} has no function {function_name!r}.{hint} Name one of its functions."
        )
    return model

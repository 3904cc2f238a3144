"""Params of the bundled models: frozen dataclasses, made from `params` and checked on construction."""

import dataclasses
import types
import typing
from collections.abc import Mapping
from numbers import Integral
from typing import Any, ClassVar, TypeVar

from tpudata.checks import is_number
from tpudata.console.nearest import did_you_mean
from tpudata.errors import UsageError

# Keys that the estimator adds to params.
_ESTIMATOR_PARAMS = ("batch_size", "use_tpu", "context")
_Params = TypeVar("_Params", bound="ModelParams")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelParams:
    """Base of the params of the bundled models.

    Attributes:
        model: name of the model.
        labels_are_maps: whether its labels are label maps, the class of each pixel.
        seed: seed of the model's draws, such as dropout; initial values follow from the estimator's seed.
    """

    model: ClassVar[str]
    labels_are_maps: ClassVar[bool] = False
    seed: int = 0

    @classmethod
    def from_params(cls: type[_Params], params: Mapping[str, object]) -> _Params:
        """Make the params from the `params` of a model_fn, without the keys that the estimator adds.

        Lists are accepted for tuples, and integers for floats, as in files of settings.

        Raises:
            UsageError: a key is unknown, a required one is missing, or a value has the wrong type or is not allowed.
        """
        fields = {field.name: field for field in dataclasses.fields(cls)}
        annotations = typing.get_type_hints(cls)
        model_params = {key: value for key, value in params.items() if key not in _ESTIMATOR_PARAMS}
        for key in model_params:
            if key not in fields:
                hint = did_you_mean(key, fields)
                raise UsageError(f"{cls.model} has no parameter {key!r} (expected one of {', '.join(fields)}).{hint}")
        for name, field in fields.items():
            if field.default is dataclasses.MISSING and name not in model_params:
                raise UsageError(f"{cls.model} needs the parameter {name!r}, which has no default. Set it in params.")
        return cls(
            **{key: _convert(f"{cls.model}: {key}", value, annotations[key]) for key, value in model_params.items()}
        )

    def require(self, name: str, is_valid: bool, allowed: str) -> None:
        """Raise a UsageError unless `is_valid`; the message says that the parameter `name` must be `allowed`."""
        if not is_valid:
            raise UsageError(f"{self.model}: {name} must be {allowed}, got {getattr(self, name)!r}.")

    def require_one_of(self, name: str, allowed: tuple[object, ...]) -> None:
        """Raise a UsageError unless the parameter `name` is one of the allowed values."""
        self.require(name, getattr(self, name) in allowed, f"one of {', '.join(map(str, allowed))}")


def _convert(name: str, value: object, annotation: object) -> Any:
    """Return the value of a param, converted to the first fitting type of `annotation`, the type annotation of the field.

    Raises:
        UsageError: the value fits no type.
    """
    field_types = typing.get_args(annotation) if isinstance(annotation, types.UnionType) else (annotation,)
    for field_type in field_types:
        converted = _convert_to_type(value, field_type)
        if converted is not _NO_MATCH:
            return converted
    raise UsageError(f"{name} must be {' or '.join(map(_describe_type, field_types))}, got {value!r}.")


# Result for a value that does not fit the field's type; None may itself be a value.
_NO_MATCH = object()


def _convert_to_type(value: object, field_type: Any) -> Any:
    """Return a value converted to a field's type; _NO_MATCH if it does not fit. Whole numbers fit floats, lists fit tuples."""
    if field_type is types.NoneType:
        return None if value is None else _NO_MATCH
    if typing.get_origin(field_type) is tuple:
        return _convert_to_tuple(value, typing.get_args(field_type))
    # In Python a bool is also an int.
    if field_type is bool or isinstance(value, bool):
        return value if field_type is bool and isinstance(value, bool) else _NO_MATCH
    if field_type is int:
        return int(value) if isinstance(value, Integral) else _NO_MATCH
    if field_type is float:
        return float(value) if is_number(value) else _NO_MATCH  # type: ignore[arg-type]
    return value if isinstance(value, field_type) else _NO_MATCH


def _convert_to_tuple(value: object, type_arguments: tuple[Any, ...]) -> Any:
    """Return a list or tuple as a tuple of the type with `type_arguments`, such as (int, ...); _NO_MATCH if it does not fit."""
    if not isinstance(value, list | tuple):
        return _NO_MATCH
    is_any_length = type_arguments[-1] is Ellipsis
    if not is_any_length and len(type_arguments) != len(value):
        return _NO_MATCH
    element_types = [type_arguments[0]] * len(value) if is_any_length else type_arguments
    converted = [
        _convert_to_type(element, element_type) for element, element_type in zip(value, element_types, strict=True)
    ]
    return _NO_MATCH if any(element is _NO_MATCH for element in converted) else tuple(converted)


def _describe_type(field_type: Any) -> str:
    """Return the words for a field's type in the message of a wrong value, such as "a list of 3 int"."""
    if typing.get_origin(field_type) is tuple:
        element_types = typing.get_args(field_type)
        # tuple[int, ...] has any length.
        count = "" if element_types[-1] is Ellipsis else f"{len(element_types)} "
        return f"a list of {count}{element_types[0].__name__}"
    names = {types.NoneType: "None", bool: "true or false", int: "a whole number", float: "a number", str: "a text"}
    return names[field_type]

"""Arguments of a source of an installed package, `--source-arg NAME=VALUE`: the fields of its dataclass."""

from __future__ import annotations

import dataclasses
import inspect
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any

from beam_jobs.sources.source import Source
from tpudata.console.nearest import suggestion
from tpudata.errors import UsageError

# Fields that the conversion sets, which are therefore no arguments.
_OPTION_FIELDS = ("options", "source_options", "text_options")
_BOOLEANS = {"true": True, "false": False}
# A parser raises ValueError or, for a bool, KeyError if the string is not a value of its type.
_PARSERS: Mapping[type, Callable[[str], Any]] = types.MappingProxyType(
    {str: str, int: int, float: float, bool: _BOOLEANS.__getitem__}
)


def open_with_arguments(
    name: str, source_class: type[Source], argument_texts: Mapping[str, str], options_by_field: Mapping[str, Any]
) -> Source:
    """Open a source of an installed package with its own arguments.

    Args:
        name: name of the source.
        source_class: class of the source, a dataclass.
        argument_texts: values of the arguments by name, as strings.
        options_by_field: options of the conversion, by the name of the field that gets them if the class has it.

    Raises:
        UsageError: an argument is unknown, missing or not of its type, the class rejects it, or the class is not a source.
    """
    fields = find_argument_fields(source_class)
    hints = _read_type_hints(source_class)
    unknown_argument = next((argument for argument in argument_texts if argument not in fields), None)
    if unknown_argument is not None:
        expected = f"one of {', '.join(fields)}" if fields else "none"
        raise UsageError(
            f"--source-arg {unknown_argument}: --source={name} has no such argument (expected {expected})"
            f"{suggestion(unknown_argument, list(fields))}"
        )
    arguments = {
        argument: _parse_argument(argument, text, hints[argument], name) for argument, text in argument_texts.items()
    }
    missing = [argument for argument, field in fields.items() if _is_required(field) and argument not in arguments]
    if missing:
        raise UsageError(
            f"--source={name} needs --source-arg {missing[0]}=VALUE. `tpudata help {name}` has all arguments."
        )
    field_names = {field.name for field in dataclasses.fields(source_class)}  # type: ignore[arg-type]
    options_with_field = {field: value for field, value in options_by_field.items() if field in field_names}
    try:
        return source_class(**options_with_field, **arguments)
    except ValueError as error:
        raise UsageError(f"--source={name}: {error}") from error


def find_argument_fields(source_class: type) -> dict[str, dataclasses.Field[Any]]:
    """Return the fields of a source's class that are arguments, by name.

    Raises:
        UsageError: the class is not a dataclass that derives from Source, or a field has the name of an attribute of all sources.
    """
    class_name = f"{source_class.__module__}.{source_class.__qualname__}"
    if not dataclasses.is_dataclass(source_class) or not issubclass(source_class, Source):
        raise UsageError(
            f"{class_name}: not a source (expected a dataclass that derives from beam_jobs.sources.Source)."
        )
    init_fields = [field for field in dataclasses.fields(source_class) if field.init]
    fields = {field.name: field for field in init_fields if field.name not in _OPTION_FIELDS}
    taken_name = next((name for name in fields if hasattr(Source, name)), None)
    if taken_name is not None:
        raise UsageError(
            f"{class_name}: the field {taken_name} has the name of an attribute of all sources, and would be an argument. Rename"
            " it; or set the attribute without a type annotation, or as a property."
        )
    return fields


def describe_source(name: str, installed: Any) -> str:
    """Return a source's documentation with its arguments, for a terminal.

    Args:
        name: name of the source.
        installed: class of the source, or a function, which has no arguments.

    Raises:
        UsageError: the class is invalid, see `find_argument_fields`, or a type annotation cannot be evaluated.
    """
    lines = [f"--source={name}", "", inspect.getdoc(installed) or "It has no documentation."]
    fields = find_argument_fields(installed) if isinstance(installed, type) else {}
    if fields:
        hints = _read_type_hints(installed)
        lines += ["", "Arguments, passed as --source-arg NAME=VALUE:"]
        for field in fields.values():
            default = "required" if _is_required(field) else f"default: {_make_default(field)!r}"
            lines.append(f"  {field.name} ({_format_type(hints[field.name])}, {default})")
    return "\n".join(lines)


def _read_type_hints(source_class: type[Source]) -> dict[str, Any]:
    """Return the types of a class's fields, by name; UsageError if an annotation cannot be evaluated."""
    try:
        return typing.get_type_hints(source_class)
    except (NameError, AttributeError, TypeError, SyntaxError) as error:
        class_name = f"{source_class.__module__}.{source_class.__qualname__}"
        raise UsageError(
            f"{class_name}: its type annotations cannot be evaluated: {error}. Import what they name at run time, too, not only"
            " under TYPE_CHECKING."
        ) from error


def _is_required(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _make_default(field: dataclasses.Field[Any]) -> Any:
    """Return the default of a field that is not required."""
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()


def _parse_argument(name: str, text: str, hint: Any, source_name: str) -> Any:
    """Parse an argument's value according to its type annotation; UsageError if the type is unsupported, or the value is not of it.

    Args:
        name: name of the argument.
        text: its value as a string.
        hint: its type annotation.
        source_name: name of the source, for the message.
    """
    is_union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    allowed_types = [member for member in typing.get_args(hint) if member is not types.NoneType] if is_union else [hint]
    if len(allowed_types) != 1 or allowed_types[0] not in _PARSERS:
        raise UsageError(
            f"--source-arg {name}: --source={source_name} declares it as {_format_type(hint)} (expected str, int, float or bool, or"
            " one of these or None). Change the source."
        )
    (argument_type,) = allowed_types
    try:
        return _PARSERS[argument_type](text)
    except (ValueError, KeyError):
        expected = "true or false" if argument_type is bool else _format_type(argument_type)
        raise UsageError(f"--source-arg {name}={text}: not of its type (expected {expected})") from None


def _format_type(hint: Any) -> str:
    return hint.__name__ if isinstance(hint, type) else str(hint)

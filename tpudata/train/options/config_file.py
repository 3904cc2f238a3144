"""YAML of `tpudata train`: the file of `--config`, and the values of `--param`.

A file is a mapping from names of flags (with dashes or underscores) to values; its key `params` has a mapping from the model's
parameters to values, and its key `pad` has a mapping from names of features to numbers.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
from collections.abc import Mapping
from typing import Any

from tpudata.checks import is_integer
from tpudata.console.flags import end_sentence, height_width
from tpudata.console.nearest import suggestion
from tpudata.error_text.values import shorten_value
from tpudata.errors import UsageError
from tpudata.storage import storage_for
from tpudata.train.options.yaml_text import parse_yaml

PARAMS, PAD = "params", "pad"
# For the type in an option's annotation: the types that YAML's parser may return, and their name in messages.
_TYPES_BY_ANNOTATION: dict[str, tuple[tuple[type, ...], str]] = {
    "str": ((str,), "a text"),
    "int": ((int,), "a whole number"),
    "float": ((int, float), "a number"),
    "bool": ((bool,), "true or false"),
}


def read_config(path: str, annotations: Mapping[str, str]) -> dict[str, Any]:
    """Read the file of `--config`.

    Args:
        path: path of the file, local or gs://.
        annotations: for each option, by name with underscores, the annotation of its field, such as "int" or "str | None".

    Returns:
        The file's options, by name with underscores; `params` is a dict. Empty for an empty file.

    Raises:
        UsageError: the file is not a YAML mapping, a key is unknown or occurs twice, or a value has the wrong type; the message
            names the file and the key.
        StorageError: the file cannot be read.
        MissingExtraError: PyYAML is not installed.
    """
    config = parse_yaml(storage_for(path).read(path).decode(errors="replace"), f"--config {path}")
    if config is None:
        return {}
    if not isinstance(config, dict):
        raise UsageError(
            f"--config {path}: the file must be a mapping, such as `model: mnist_cnn`, got {_format_value(config)}."
        )
    options: dict[str, Any] = {}
    for key, setting in config.items():
        name = str(key).replace("-", "_")
        if name not in annotations:
            unknown = end_sentence(f"--config {path}: unknown key {key!r}{suggestion(name, annotations)}")
            raise UsageError(f"{unknown} Put parameters of the model under {PARAMS}.")
        if name in options:
            raise UsageError(f"--config {path}: {name} occurs twice, with dashes and underscores. Remove one.")
        location = f"--config {path}: {key}"
        if name == PAD:
            options[name] = _convert_pad(setting, location)
        elif name == PARAMS:
            options[name] = convert_params(setting, location)
        else:
            options[name] = _convert_value(setting, annotations[name], location)
    return options


def parse_param(text: str) -> tuple[str, Any]:
    """Split the `name=value` of a `--param`; dashes in the name become underscores, and the value is read as YAML.

    Raises:
        UsageError: the flag's value has the wrong form; or the parameter's value is not YAML, or is one that JSON cannot represent,
            such as a date.
        MissingExtraError: PyYAML is not installed.
    """
    name, equals, value = text.partition("=")
    name = name.strip().replace("-", "_")
    if not equals or not name.isidentifier():
        raise UsageError(f"{text!r} is not NAME=VALUE, such as hidden_units=512.")
    return name, _as_json(parse_yaml(value, f"--param {name}"), f"--param {name}")


def convert_params(value: object, location: str) -> dict[str, Any]:
    """Return the model's parameters as a dict, by name with underscores.

    Args:
        value: the value of `params` that YAML's parser returned.
        location: the file and the key, for messages.

    Raises:
        UsageError: the value is neither null nor a mapping from names to finite numbers, strings, true, false, null, or lists or
            mappings of these; or two names differ only by dashes and underscores.
    """
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise UsageError(f"{location} must be a mapping from names to values, got {_format_value(value)}.")
    params = {}
    for key, param in value.items():
        name = str(key).replace("-", "_")
        if not name.isidentifier():
            raise UsageError(f"{location}: {key!r} cannot be the name of a parameter. Use letters, digits and _.")
        if name in params:
            raise UsageError(f"{location}: {name} occurs twice, with dashes and underscores. Remove one.")
        params[name] = _as_json(param, f"{location}.{key}")
    return params


def _convert_pad(value: Any, location: str) -> dict[str, int]:
    """Return the option `pad`, the number of entries by name of the feature; raise UsageError if the value is something else."""
    is_valid = isinstance(value, Mapping) and all(
        isinstance(name, str) and is_integer(number, least=1) for name, number in value.items()
    )
    if not is_valid:
        raise UsageError(
            f"{location} must be a mapping from names to whole numbers of 1 or more, got {_format_value(value)}."
        )
    return dict(value)


def _as_json(value: object, location: str) -> Any:
    """Return a copy of a value of YAML; UsageError if JSON, the format of the run's record, cannot represent it."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    if isinstance(value, list):
        return [_as_json(element, location) for element in value]
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {key: _as_json(element, f"{location}.{key}") for key, element in value.items()}
    raise UsageError(
        f"{location} must be a finite number, a text, true, false, null, a list or a mapping of these, got {_format_value(value)}."
    )


def _format_value(value: object) -> str:
    """Return a value for a message: null, true, false and dates as in YAML, others as their repr, shortened if it is long."""
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    # repr would show datetime.date(2020, 1, 31).
    return str(value) if isinstance(value, datetime.date) else shorten_value(value)


def _convert_value(value: object, annotation: str, location: str) -> Any:
    """Return the value of an option in the type of its field; raise UsageError if it has the wrong type.

    Args:
        value: the value that YAML's parser returned.
        annotation: annotation of the field, such as "int", "float | None" or "tuple[int, int] | None".
        location: the file and the key, for messages.
    """
    type_name, _, other_type = annotation.partition(" | ")
    if value is None and other_type == "None":
        return None
    if type_name.startswith("tuple"):
        return _parse_size(value, location)
    types, expected = _TYPES_BY_ANNOTATION[type_name]
    # In Python a bool is also an int.
    if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
        raise UsageError(f"{location} must be {expected}, got {_format_value(value)}.")
    checked: Any = value  # Type checkers do not see which type was checked.
    try:
        # YAML reads 1 as an int, of any size.
        return float(checked) if type_name == "float" else checked
    except OverflowError as error:
        raise UsageError(f"{location} must be a number of at most 1.8e308, got {_format_value(value)}.") from error


def _parse_size(value: object, location: str) -> tuple[int, int]:
    """Return (height, width) from a string such as "32x48", a list of two numbers, or one number for a square.

    Raises:
        UsageError: the value has none of these forms.
    """
    text = "x".join(map(str, value)) if isinstance(value, list) else str(value)
    try:
        return height_width(text)
    except argparse.ArgumentTypeError as error:
        raise UsageError(f"{location}: {error}.") from error

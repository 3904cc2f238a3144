"""The YAML that `tpudata train` takes: the file of `--config`, and the values of `--param`.

A file is a mapping from names of flags (dashes or underscores) to their values, and under `params` one from the
model's own parameters to theirs.
"""

from __future__ import annotations

import argparse
import datetime
import importlib
import json
import re
from collections.abc import Mapping
from typing import Any

from tpudata.console.flags import height_width, sentence
from tpudata.console.nearest import suggestion
from tpudata.errors import MissingExtraError, UsageError
from tpudata.storage import storage_for

PARAMS = "params"
# What a value in a file must be, by the type of the option's field; booleans are no whole numbers.
_KINDS: dict[str, tuple[tuple[type, ...], str]] = {
    "str": ((str,), "a text"),
    "int": ((int,), "a whole number"),
    "float": ((int, float), "a number"),
    "bool": ((bool,), "true or false"),
}


def read_config(path: str, kinds: Mapping[str, str]) -> dict[str, Any]:
    """Read the file of `--config`.

    Args:
        path: the file, local or gs://.
        kinds: from each option's name, with underscores, to its type as its field is annotated: "int", "str | None".

    Returns:
        The options that the file gives, by name with underscores; `params` is a dict.

    Raises:
        UsageError: the file is no YAML mapping, has an unknown key or one twice, or a value of another type; the message
            names the file and the key.
        StorageError: the file cannot be read.
        MissingExtraError: PyYAML is not installed.
    """
    found = parse_yaml(storage_for(path).read(path).decode(errors="replace"), f"--config {path}")
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise UsageError(f"--config {path}: it must be a mapping, such as `model: mnist_cnn`, got {found!r}.")
    values: dict[str, Any] = {}
    for key, value in found.items():
        name = str(key).replace("-", "_")
        if name not in kinds:
            unknown = sentence(f"--config {path}: unknown key {key!r}{suggestion(name, kinds)}")
            raise UsageError(f"{unknown} The model's own parameters stand under {PARAMS}.")
        if name in values:
            raise UsageError(f"--config {path}: {name} is there twice, in dashes and underscores. Leave one out.")
        place = f"--config {path}: {key}"
        values[name] = checked_params(value, place) if name == PARAMS else _checked(value, kinds[name], place)
    return values


def parse_param(text: str) -> tuple[str, Any]:
    """Split the `name=value` of a `--param`; the value is read as YAML.

    Raises:
        UsageError: it has not that form.
        MissingExtraError: PyYAML is not installed.
    """
    name, equals, value = text.partition("=")
    name = name.strip().replace("-", "_")
    if not equals or not name.isidentifier():
        raise UsageError(f"{text!r} is not NAME=VALUE, such as hidden_units=512")
    return name, _plain(parse_yaml(value, f"--param {name}"), f"--param {name}")


def parse_yaml(text: str, place: str) -> Any:
    """Parse a YAML text.

    Raises:
        UsageError: it is none, or a mapping has a key twice.
        MissingExtraError: PyYAML is not installed.
    """
    try:
        yaml = importlib.import_module("yaml")
    except ModuleNotFoundError as error:
        raise MissingExtraError("A configuration in YAML", "tensorflow") from error

    class Loader(yaml.SafeLoader):  # type: ignore[misc, name-defined]
        """YAML as people mean it: 4e-3 is a number, and a key that is there twice a mistake."""

        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            keys = [self.construct_object(key, deep=True) for key, _ in node.value]
            for number, key in enumerate(keys):
                if key in keys[:number]:
                    raise yaml.constructor.ConstructorError(
                        None, None, f"the key {key!r} is there twice", node.start_mark
                    )
            return super().construct_mapping(node, deep)

    Loader.add_implicit_resolver(
        "tag:yaml.org,2002:float", re.compile(r"^[-+]?[0-9][0-9_]*(\.[0-9_]*)?[eE][-+]?[0-9]+$"), list("-+0123456789")
    )
    try:
        found = yaml.load(text, Loader)
        # ValueError where a list or a mapping holds itself.
        json.dumps(found, default=str, skipkeys=True)
        return found
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = "" if mark is None else f" at line {mark.line + 1}, column {mark.column + 1}"
        raise UsageError(f"{place}: no YAML{where}: {error.problem or error.context}.") from error
    except (yaml.YAMLError, TypeError, ValueError) as error:
        raise UsageError(f"{place}: no YAML: {str(error).splitlines()[0]}.") from error


def checked_params(value: Any, place: str) -> dict[str, Any]:
    """Return the model's parameters as a dict by names with underscores.

    Raises:
        UsageError: it is no mapping from names to numbers, texts, true, false, null, lists or mappings of them.
    """
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise UsageError(f"{place} must be a mapping from names to values, got {value!r}.")
    params = {}
    for key, item in value.items():
        name = str(key).replace("-", "_")
        if not name.isidentifier():
            raise UsageError(f"{place}: {key!r} is no parameter's name.")
        if name in params:
            raise UsageError(f"{place}: {name} is there twice, in dashes and underscores. Leave one out.")
        params[name] = _plain(item, f"{place}.{key}")
    return params


def _plain(value: Any, place: str) -> Any:
    """Return the value, if JSON has it too: the run's record is JSON."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list):
        return [_plain(item, place) for item in value]
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {key: _plain(item, f"{place}.{key}") for key, item in value.items()}
    raise UsageError(
        f"{place} must be a number, a text, true, false, null, a list or a mapping of these, got {_written(value)}."
    )


def _written(value: Any) -> str:
    """Return a value as a file has it: by YAML's names, not Python's."""
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    return str(value) if isinstance(value, datetime.date) else repr(value)


def _checked(value: Any, kind: str, place: str) -> Any:
    """Return the value of an option; `kind` is its field's annotation."""
    name, _, optional = kind.partition(" | ")
    if value is None and optional:
        return None
    if name.startswith("tuple"):
        return _size(value, place)
    types, text = _KINDS[name]
    if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
        raise UsageError(f"{place} must be {text}, got {_written(value)}.")
    result: Any = value
    return float(result) if name == "float" else result


def _size(value: Any, place: str) -> tuple[int, int]:
    text = "x".join(map(str, value)) if isinstance(value, list) else str(value)
    try:
        return height_width(text)
    except argparse.ArgumentTypeError as error:
        raise UsageError(f"{place}: {error}.") from error

"""Parser of the YAML of `tpudata train`: one-line errors, and limits on depth and size."""

from __future__ import annotations

import importlib
import re
from typing import Any

from tpudata.error_text.lines import first_line
from tpudata.errors import MissingExtraError, UsageError

# The parser nests three calls for each level, and Python allows 1,000.
_MAX_DEPTH = 50
# An alias stands for a copy: 300 bytes with aliases of aliases can stand for 10**10 values.
_MAX_VALUES = 100_000
# SafeLoader takes 4e-3 for a string, since YAML 1.1 wants a dot in a number with an exponent.
_FLOAT = re.compile(r"^[-+]?[0-9][0-9_]*(\.[0-9_]*)?[eE][-+]?[0-9]+$")


def parse_yaml(text: str, origin: str) -> Any:
    """Return the value of a YAML document.

    Args:
        text: the document, which may be a single value.
        origin: where the document comes from, for errors.

    Raises:
        UsageError: the document is not valid YAML, a mapping has a key twice, or values are nested too deeply or too many.
        MissingExtraError: PyYAML is not installed.
    """
    try:
        yaml = importlib.import_module("yaml")
    except ModuleNotFoundError as error:
        # The extra that installs PyYAML.
        raise MissingExtraError("A configuration in YAML", "tensorflow") from error
    try:
        value = yaml.load(text, _make_loader(yaml))
        _count_values(value, {})  # Raises the error of too many values.
        return value
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        location = "" if mark is None else f" at line {mark.line + 1}, column {mark.column + 1}"
        raise UsageError(f"{origin}: not valid YAML{location}: {error.problem or error.context}.") from error
    except (yaml.YAMLError, TypeError, ValueError) as error:
        raise UsageError(f"{origin}: not valid YAML: {first_line(error)}.") from error


def _make_loader(yaml: Any) -> Any:
    """Return the class of loader for `yaml.load`; `yaml` is the imported module, which is optional."""

    class Loader(yaml.SafeLoader):  # type: ignore[misc]
        """Loader for which 4e-3 is a number, and a repeated key or deep nesting an error."""

        depth = 0

        def compose_node(self, parent: object, index: object) -> object:
            """Return the tree of a value, unless it is nested too deeply."""
            self.depth += 1
            if self.depth > _MAX_DEPTH:
                problem = f"values are nested too deeply (expected at most {_MAX_DEPTH} levels)"
                raise yaml.composer.ComposerError(None, None, problem, self.peek_event().start_mark)
            node = super().compose_node(parent, index)
            self.depth -= 1
            return node

        def construct_object(self, node: Any, deep: bool = False) -> object:
            """Return the value of a tree; the error for a scalar that does not fit its tag names its line."""
            try:
                return super().construct_object(node, deep)
            # SafeLoader's constructors raise these errors for a scalar that does not fit its tag, such as `!!timestamp x`.
            except (AttributeError, LookupError, ValueError, TypeError, ArithmeticError) as error:
                tag_name = node.tag.rpartition(":")[2]
                problem = f"{_shorten(node.value)} is not of the type {tag_name}"
                raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark) from error

        def construct_mapping(self, node: Any, deep: bool = False) -> object:
            """Return a mapping, unless one of its keys occurs twice."""
            keys = [self.construct_object(key, deep=True) for key, _ in node.value]
            for index, key in enumerate(keys):
                if key in keys[:index]:
                    raise yaml.constructor.ConstructorError(
                        None, None, f"the key {key!r} occurs twice", node.start_mark
                    )
            return super().construct_mapping(node, deep)

    Loader.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("-+0123456789"))
    return Loader


def _count_values(value: object, counts: dict[int, int | None]) -> int:
    """Return the number of values in a structure, in which each alias counts as a copy.

    Args:
        value: a structure of lists and mappings, as YAML's parser returns it.
        counts: number of values in each list and mapping so far, by its id; None while one is being counted.

    Raises:
        ValueError: there are more than _MAX_VALUES values, or a list or mapping contains itself.
    """
    if not isinstance(value, list | dict):
        return 1
    if id(value) not in counts:
        counts[id(value)] = None
        children = value if isinstance(value, list) else value.values()
        count = 1 + sum(_count_values(child, counts) for child in children)
        if count > _MAX_VALUES:
            raise ValueError(f"its aliases stand for too many values (expected at most {_MAX_VALUES:,})")
        counts[id(value)] = count
    total = counts[id(value)]
    # Still being counted: the value contains itself.
    if total is None:
        raise ValueError("Circular reference detected")
    return total


def _shorten(value: object) -> str:
    text = repr(value) if isinstance(value, str) else "a list or mapping"
    return text if len(text) <= 60 else f"{text[:57]}..."

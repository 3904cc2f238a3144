"""Sources of installed packages, found by entry points: one group is for sources of images, one for sources of documents.

An entry point names a Source's class, whose fields are its arguments, or a function that returns a Source;
docs/convert/extending.md has a recipe of each.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias, cast

from beam_jobs.sources.installed.own_arguments import open_with_arguments
from beam_jobs.sources.installed.source_checks import check_attributes
from beam_jobs.sources.source import Source
from tpudata.console.nearest import suggestion
from tpudata.entry_points import load_entry_point
from tpudata.errors import UsageError

IMAGES, DOCUMENTS = "tpudata.sources", "tpudata.text_sources"
# What the entry point of a source names.
Installed: TypeAlias = type[Source] | Callable[..., Source]


def list_installed_names(group: str) -> list[str]:
    """Return the names of a group's sources, sorted."""
    return sorted(_find_entry_points(group))


def load_source(group: str, name: str) -> Installed | None:
    """Load the class or function that the entry point of this name refers to; None if there is no such entry point.

    Args:
        group: `IMAGES` or `DOCUMENTS`, the group of entry points.
        name: name of the source.

    Raises:
        UsageError: the entry point is invalid.
    """
    points = _find_entry_points(group)
    if name not in points:
        return None
    installed = load_entry_point(points[name])
    if not callable(installed):
        raise UsageError(
            f"--source={name}: the entry point names neither a class nor a function (got {type(installed).__name__}, expected a"
            " source's class, or a function that returns a source). Change its package."
        )
    return cast("Installed", installed)


def open_installed_source(
    name: str, installed: Installed, argument_texts: Mapping[str, str], options_by_field: Mapping[str, Any]
) -> Source:
    """Open a source of an installed package.

    Args:
        name: name of the source.
        installed: class or function that its entry point names.
        argument_texts: values of the arguments by name, as strings; only a class takes any.
        options_by_field: options of the conversion, by the name of the field that gets them; a function gets their values.

    Raises:
        UsageError: arguments do not fit, a function returns no source, or an attribute of the source has the wrong type.
    """
    if isinstance(installed, type):
        source = open_with_arguments(name, installed, argument_texts, options_by_field)
    elif argument_texts:
        raise make_no_arguments_error(name)
    else:
        source = installed(*options_by_field.values())
        if not isinstance(source, Source):
            raise UsageError(
                f"--source={name}: {installed.__module__}.{installed.__qualname__}: not a source (got {type(source).__name__},"
                " expected an instance of beam_jobs.sources.Source). Change its package."
            )
    check_attributes(source)
    return source


def make_unknown_source_error(group: str, name: str, names: Sequence[str]) -> UsageError:
    """Return the error of a source that is not installed in a group.

    Args:
        group: group of the sources that the conversion takes.
        name: value of `--source`.
        names: names of all sources that the conversion takes.
    """
    other_group, other_kind = (DOCUMENTS, "text") if group == IMAGES else (IMAGES, "images")
    if name in _find_entry_points(other_group):
        return UsageError(
            f"--source={name} is for `tpudata convert {other_kind}`. Run that command, or name another source."
        )
    expected = f"expected one of {', '.join(names)}" if names else "expected none: no installed package has any"
    return UsageError(f"--source is {name!r} ({expected}){suggestion(name, names)}")


def make_no_arguments_error(name: str) -> UsageError:
    """Return the error of arguments for a source that takes none."""
    return UsageError(f"--source-arg: --source={name} takes no arguments. Omit the flag.")


def _find_entry_points(group: str) -> dict[str, importlib.metadata.EntryPoint]:
    """Return the entry points of a group, by name."""
    return {point.name: point for point in importlib.metadata.entry_points(group=group)}

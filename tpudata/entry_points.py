"""Additions of installed packages, found by their entry points."""

from __future__ import annotations

import importlib.metadata
from typing import Any

from tpudata.errors import TpudataError, UsageError


def load_entry_point(point: importlib.metadata.EntryPoint) -> Any:
    """Return the object that an entry point names.

    Raises:
        UsageError: its module cannot be imported, or does not have the name.
        TpudataError: the module raised it; it is passed on unchanged.
    """
    try:
        return point.load()
    except (TpudataError, MemoryError):
        raise
    except Exception as error:
        raise UsageError(
            f"the entry point {point.name} = {point.value} of {point.group} cannot be loaded: {type(error).__name__}: {error}."
            " Change its package, or uninstall it."
        ) from error

"""Options of `make_input_fn` by their attributes' names, for tests with tables of them."""

from __future__ import annotations

import dataclasses
from typing import Any

from tpudata import Images, Tokens

_GROUPS = {"images": Images, "tokens": Tokens}


def grouped(flat: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of `make_input_fn`, those of images and tokens in their objects."""
    found = dict(flat)
    for name, kind in _GROUPS.items():
        names = {field.name for field in dataclasses.fields(kind)} & found.keys()
        if names:
            found[name] = kind(**{attribute: found.pop(attribute) for attribute in names})
    return found

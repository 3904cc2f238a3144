"""What the tests of annotation files share: files in their real layout, and what is read of them.

`read` calls the form itself, which takes a thousandth of a conversion.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from beam_jobs.annotations.annotation import ImageAnnotation
from beam_jobs.annotations.contents import Contents
from beam_jobs.annotations.find_form import find_form
from tpudata.errors import BadRecordError


class Found(NamedTuple):
    """What was read: pictures by name, errors, and what they have."""

    pictures: dict[str, ImageAnnotation]
    errors: list[BadRecordError]
    contents: Contents

    def one_error(self) -> BadRecordError:
        (error,) = self.errors
        return error


def read(path: Path | str) -> Found:
    """Reads an annotation file or a folder, whatever its form is."""
    form = find_form(str(path))
    found = Found({}, [], Contents())
    for part in form.list_parts():
        part_contents = Contents()
        for item in form.read(part, part_contents.names):
            if isinstance(item, BadRecordError):
                found.errors.append(item)
            else:
                assert item.picture not in found.pictures
                found.pictures[item.picture] = item
                part_contents.add(item)
        found.contents.merge(part_contents)
    return found


def write_text(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8", newline="\n")
    return path


def write_files(root: Path, files: Mapping[str, str | bytes]) -> Path:
    for name, data in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data.encode() if isinstance(data, str) else data)
    return root


def write_json(path: Path, value: Any) -> Path:
    return write_text(path, json.dumps(value))


def approximately(box: tuple[float, ...]) -> Any:
    return pytest.approx(box, abs=1e-9)

"""The rooms of `beam_jobs`: each imports only rooms that come before it."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

import beam_jobs

ROOT = Path(beam_jobs.__file__).parent
MOST_MODULES = 12
# A folder or a module of beam_jobs, the lowest first.
ROOMS = (
    "values",
    "references",
    "converter",
    "options",
    "output",
    "run",
    "tokenizers",
    "image_records",
    "text_files",
    "text_records",
    "sources",
    "stored_records",
    "planning",
    "append",
    "steps",
    "pipeline",
    "examples",
    "command",
    "images",
    "text",
    "reshard",
)
MODULES = sorted(path for path in ROOT.rglob("*.py") if path.parent != ROOT or path.stem != "__init__")


def imported(path: Path) -> Iterator[str]:
    """Yield the modules that a module imports, wherever it does, and the names that it imports from them."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} has a relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def room_of(path: Path) -> str:
    return path.relative_to(ROOT).with_suffix("").parts[0]


@pytest.mark.parametrize("path", [pytest.param(path, id=str(path.relative_to(ROOT))) for path in MODULES])
def test_imports_run_downwards(path: Path) -> None:
    names = [name.split(".") for name in imported(path)]
    below = {name[1] for name in names if name[0] == "beam_jobs"}
    allowed = ROOMS[: ROOMS.index(room_of(path)) + 1]
    assert below <= set(allowed)
    assert not {name[0] for name in names} & {"tensorflow", "tf_keras"}


def test_modules_of_a_room_import_no_circle() -> None:
    modules = {".".join(("beam_jobs", *path.relative_to(ROOT).with_suffix("").parts)): path for path in MODULES}
    graph = {
        module: {
            known
            for name in imported(path)
            for known in (name, name.rpartition(".")[0])
            if known in modules and known != module
        }
        for module, path in modules.items()
    }
    while leaves := {module for module, below in graph.items() if not below & graph.keys()}:
        graph = {module: below for module, below in graph.items() if module not in leaves}
    assert not graph


def test_every_room_is_in_the_order() -> None:
    assert {room_of(path) for path in MODULES} == set(ROOMS)


def test_rooms_are_small() -> None:
    folders = itertools.groupby(MODULES, key=lambda path: path.parent)
    modules = {
        folder: [path for path in paths if path.stem != "__init__"] for folder, paths in folders if folder != ROOT
    }
    assert {folder: paths for folder, paths in modules.items() if len(paths) > MOST_MODULES} == {}

"""The rooms of tpudata and beam_jobs: each imports only rooms that come before it."""

from __future__ import annotations

from collections import Counter
from typing import TypeAlias

import pytest

from tests.helpers.rooms import circles, import_graph, imports, modules_of

# Folders and modules of tpudata, the lowest first; beam_jobs stands where its imports end.
ROOMS = (
    "_version",
    "installation",
    "errors",
    "error_text",
    "checks",
    "json_values",
    "checked_json",
    "entry_points",
    "_tensorflow",
    "tensor_types",
    "tensorflow_internals",
    "_gcs_billing",
    "console",
    "storage",
    "format",
    "images",
    "tokenizers",
    "beam_jobs",
    "source",
    "devices",
    "input",
    "estimator",
    "models",
    "report",
    "migrate",
    "train",
    "testing",
    "cli",
    "__main__",
)
# Rooms that use the package by its public names.
USERS = ("train", "testing", "cli", "__main__")
# A command that uses the sources of a conversion; `convert` finds its job by name.
CONVERTING = {"tpudata.cli.help"}
WITHOUT_TENSORFLOW = (
    "_version",
    "installation",
    "errors",
    "error_text",
    "checks",
    "json_values",
    "checked_json",
    "entry_points",
    "console",
    "storage",
    "format",
    "images",
    "tokenizers",
    "beam_jobs",
    "source",
    "migrate",
    "report",
)
MAX_MODULES = 12
TENSORFLOW = {"tensorflow", "tf_keras", "keras"}
MODULES = modules_of("tpudata") | modules_of("beam_jobs")
Graph: TypeAlias = "dict[str, set[str]]"


@pytest.fixture(scope="module")
def graph() -> Graph:
    """Which modules each module imports."""
    return import_graph(MODULES)


def room_of(name: str) -> str:
    """Return the room of a module, or of a name in it; the empty string for tpudata itself."""
    package, *rest = name.split(".")
    return package if package == "beam_jobs" or not rest else rest[0]


def modules_in(*rooms: str) -> set[str]:
    return {module for module in MODULES if room_of(module) in rooms}


def test_the_order_lists_every_room() -> None:
    assert {room_of(module) for module in MODULES} - {"tpudata"} == set(ROOMS)


@pytest.mark.parametrize("room", ROOMS)
def test_imports_run_downwards(room: str, graph: Graph) -> None:
    allowed = {*ROOMS[: ROOMS.index(room) + 1], *(["tpudata"] if room in USERS else [])}
    assert modules_in(room)
    found = {(module, name) for module in modules_in(room) for name in graph[module]}
    assert {(module, name) for module, name in found if room_of(name) not in allowed} == set()


def test_only_commands_that_need_it_import_beam_jobs(graph: Graph) -> None:
    callers = {module for module, below in graph.items() if below & modules_in("beam_jobs")}
    assert callers - modules_in("beam_jobs") == CONVERTING


def test_imports_form_no_cycles() -> None:
    """Nor do the imports of type checkers: of two files that name each other, neither can be read first."""
    assert circles(import_graph(MODULES | modules_of("scripts"), includes_types=True)) == {}


def test_conversion_imports_no_tensorflow(graph: Graph) -> None:
    """Follow all imports, also those of functions; tests/test_public_names.py loads the modules."""
    reached, waiting = set(), modules_in(*WITHOUT_TENSORFLOW)
    while waiting:
        reached |= waiting
        waiting = set().union(*(graph[module] for module in waiting)) - reached
    names = {(module, item.name) for module in reached for item in imports(MODULES[module])}
    assert {(module, name) for module, name in names if name.partition(".")[0] in TENSORFLOW} == set()


def test_rooms_have_at_most_twelve_modules() -> None:
    counts = Counter(path.parent for path in modules_of("tpudata").values() if path.stem != "__init__")
    assert {folder: count for folder, count in counts.items() if count > MAX_MODULES} == {}

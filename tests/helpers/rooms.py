"""What modules import, for the tests of the rooms: the order of packages, and of the folders in them."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]


class Import(NamedTuple):
    """A name that a module imports.

    Attributes:
        name: full name of a module, or of something in one.
        is_eager: whether it is imported with the module, rather than by a function.
    """

    name: str
    is_eager: bool


def modules_of(package: str) -> dict[str, Path]:
    """Return the files of a package, and of those below it, by the name of the module."""
    files = sorted((ROOT / package.replace(".", "/")).rglob("*.py"))
    return {".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path for path in files}


@functools.cache
def imports(path: Path, *, includes_types: bool = False) -> list[Import]:
    """Return what a file imports; what only type checkers import is part of it if `includes_types`."""
    return list(
        _imports(ast.parse(path.read_text(encoding="utf-8")).body, is_eager=True, includes_types=includes_types)
    )


def _imports(nodes: list[ast.stmt], *, is_eager: bool, includes_types: bool) -> Iterator[Import]:
    for node in nodes:
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"a relative import of {node.module}"
            yield from (Import(f"{node.module}.{alias.name}", is_eager) for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (Import(alias.name, is_eager) for alias in node.names)
        elif includes_types or not (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"):
            below = [child for child in ast.walk(node) if isinstance(child, ast.Import | ast.ImportFrom)]
            is_called = isinstance(node, ast.FunctionDef | ast.ClassDef)
            yield from _imports(list(below), is_eager=is_eager and not is_called, includes_types=includes_types)


def find_module(name: str, modules: dict[str, Path]) -> str:
    """Return the module that a name is in, or is; the empty string if it is none of `modules`."""
    while name and name not in modules:
        name = name.rpartition(".")[0]
    return name


def import_graph(modules: dict[str, Path], *, includes_types: bool = False) -> dict[str, set[str]]:
    """Return which other ones of the modules each one imports, see `imports`."""
    return {
        module: {find_module(item.name, modules) for item in imports(path, includes_types=includes_types)}
        - {module, ""}
        for module, path in modules.items()
    }


def upward_imports(package: str, rooms: Sequence[str]) -> list[str]:
    """Return the imports of a package by which a folder, as it is loaded, needs one that comes after it.

    Args:
        package: the package.
        rooms: names of its folders and modules, the lowest first; an empty string stands for all others.
    """
    modules = modules_of(package)

    def room_of(name: str) -> str:
        part = name.removeprefix(package).strip(".").partition(".")[0]
        return part if part in rooms else ""

    assert {room_of(module) for module in modules} == set(rooms)
    return [
        f"{module} imports {item.name}"
        for module, path in modules.items()
        for item in imports(path)
        if item.is_eager
        and item.name.startswith(f"{package}.")
        and rooms.index(room_of(item.name)) > rooms.index(room_of(module))
    ]


def circles(graph: dict[str, set[str]]) -> dict[str, set[str]]:
    """Return the part of a graph of imports that circles hold together; empty if there are none."""
    while leaves := {module for module, below in graph.items() if not below & graph.keys()}:
        graph = {module: below for module, below in graph.items() if module not in leaves}
    return graph

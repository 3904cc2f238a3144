"""Notes on places of a program that a person has to check."""

from __future__ import annotations

import ast
from collections.abc import Container, Iterator

from tpudata.migrate.bindings import module_path


def star_imports(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield the line and a note for each import of all names of a part of TensorFlow."""
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.ImportFrom)
            and node.names[0].name == "*"
            and module_path(f"{node.module}.*") is not None
        ):
            yield (
                node.lineno,
                f"names that come from {node.module} by * are not seen. Import them by name, and migrate again.",
            )


def reused_names(tree: ast.AST, bindings: Container[str]) -> Iterator[tuple[int, str]]:
    """Yield the line and a note for each name of TensorFlow that the program also assigns to."""
    for node in ast.walk(tree):
        stored = node.id if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load) else None
        name = node.arg if isinstance(node, ast.arg) else stored
        if name in bindings:
            line = getattr(node, "lineno", 1)
            yield line, f"{name} is an import and a variable here: its uses were taken for the import's. Check them."


def dimension_values(tree: ast.AST, root: str) -> Iterator[tuple[int, str]]:
    """Yield the line and a note for each `.value` of a dimension; `root` is the program's name for TensorFlow."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr == "value" and isinstance(node.value, ast.Subscript):
            shape = node.value.value
            of_shape = isinstance(shape, ast.Attribute) and shape.attr == "shape"
            of_call = isinstance(shape, ast.Call) and getattr(shape.func, "attr", "") == "get_shape"
            if of_shape or of_call:
                yield (
                    node.lineno,
                    "dimensions are ints today. Remove .value, or call "
                    f"{root}.disable_v2_tensorshape() after the imports.",
                )

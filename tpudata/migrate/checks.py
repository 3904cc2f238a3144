"""Notes on lines of a file that a person must check."""

from __future__ import annotations

import ast
import sys
from collections.abc import Container, Iterator, Mapping
from pathlib import PurePath
from typing import TypeAlias

from tpudata.migrate.analysis.bindings import find_module_path
from tpudata.migrate.analysis.plans import FilePlan
from tpudata.migrate.analysis.versions import is_written_for_v1

# Lines, and what a person must do there.
Notes: TypeAlias = Iterator[tuple[int, str]]
# Parts of TensorFlow's package that are not its API, by their first name below `tensorflow`, and what became of them.
_PRIVATE_PARTS = {
    "python": "is private to TensorFlow, and changes with each release",
    "examples": "is gone from TensorFlow",
    "models": "is gone from TensorFlow",
    "contrib": "is gone from TensorFlow",
}


def find_indirect_imports(path: str, tree: ast.AST, plans: Mapping[str, FilePlan]) -> Notes:
    """Yield the line and a note for each import that binds, or may bind, a name of TensorFlow through another module or by `*`.

    Args:
        path: path of the file.
        tree: its syntax tree.
        plans: plans of all files, by their paths.
    """
    plan = plans[path]
    loaded_names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    plans_by_module = {PurePath(file).stem: file_plan for file, file_plan in plans.items()}
    for node in ast.walk(tree):
        if not isinstance(node, ast.ImportFrom):
            continue
        line = node.lineno
        module = "." * node.level + (node.module or "")
        is_star = [alias.name for alias in node.names] == ["*"]
        # An import from TensorFlow itself binds its names in this file's plan, except by *.
        if node.level == 0 and find_module_path(f"{module}.*") is not None:
            if is_star:
                yield line, f"names that come from {module} by * are not seen. Import them by name, and migrate again."
            continue
        if module.partition(".")[0] in sys.stdlib_module_names:
            continue
        # None for a module that is not one of the files.
        imported_plan = plans_by_module.get(module.rpartition(".")[2])
        if is_star:
            names = _find_star_names(line, plan, imported_plan) & loaded_names
            clause = f"`from {module} import *` {'may bind' if imported_plan is None else 'binds'}"
        else:
            known_names = set() if imported_plan is None else imported_plan.bindings.keys()
            # Programs usually import TensorFlow as tf.
            names = {alias.asname or alias.name for alias in node.names} & {"tf", *known_names}
            clause = f"{module} imports"
        for name in sorted(names):
            if name not in plan.bindings:
                yield (
                    line,
                    f"{clause} {name}, so its uses here were not looked at. Import TensorFlow in this file, and migrate again.",
                )
            elif imported_plan is None or not _has_same_meaning(name, plan, imported_plan):
                yield (
                    line,
                    f"{clause} {name} anew, and its uses were taken for the import's. Import what you need of {module} by name.",
                )


def _find_star_names(line: int, plan: FilePlan, imported_plan: FilePlan | None) -> set[str]:
    """Return the names of TensorFlow that a `from module import *` binds, or may bind if the module is not one of the files.

    Args:
        line: line of the import.
        plan: plan of the file with the import.
        imported_plan: plan of the module, None if it is not one of the files.
    """
    if imported_plan is not None:
        return {*imported_plan.bindings}
    # The module is not known, so it may bind `tf`, the usual name, or any name that this file gives TensorFlow itself, the
    # bindings without a path. A name that is bound again after the `*` is not affected.
    tensorflow_names = {name for name, binding in plan.bindings.items() if not binding.path}
    later_names = {name for name, binding in plan.bindings.items() if binding.statement.lineno >= line}
    return {"tf", *tensorflow_names} - later_names


def _has_same_meaning(name: str, plan: FilePlan, other_plan: FilePlan) -> bool:
    """Return whether a name means the same part of the same API in two files, also after the rewrite; the first file binds it."""
    binding, other_binding = plan.bindings[name], other_plan.bindings.get(name)
    return (
        other_binding is not None
        and binding.path == other_binding.path
        and is_written_for_v1(plan.version) == is_written_for_v1(other_plan.version)
    )


def find_reused_names(tree: ast.AST, imported_names: Container[str]) -> Notes:
    """Yield the line and a note for each assignment or parameter whose name is also that of an import of TensorFlow."""
    for node in ast.walk(tree):
        if isinstance(node, ast.arg):
            name = node.arg
        elif isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            name = node.id
        else:
            continue
        if name in imported_names:
            text = f"{name} is an import and a variable here: its uses were taken for the import's. Check them."
            yield node.lineno, text


def find_private_imports(tree: ast.AST, imported_names: Container[str]) -> Notes:
    """Yield the line and a note for each import of a part of TensorFlow that is not its API.

    Args:
        tree: syntax tree of the file.
        imported_names: the file's names that its imports bind to TensorFlow or to a part of it.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            # Skip tf.contrib if the import binds it to a name that the rewrite follows, an alias or `tensorflow`: the uses of that
            # name are rewritten or noted.
            names = [
                alias.name
                for alias in node.names
                if ".contrib" not in alias.name or (alias.asname is None and "tensorflow" not in imported_names)
            ]
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            # The rewrite drops imports of tf.contrib and its parts: the uses of their names are rewritten or noted.
            names = [name for name in names if (find_module_path(name) or ())[:1] != ("contrib",)]
        else:
            continue
        for name in names:
            # Modules of TensorFlow's estimator in tensorflow.python have a different path, and are rewritten.
            path = find_module_path(name)
            fate = _PRIVATE_PARTS.get(path[0]) if path else None
            if fate is not None:
                yield node.lineno, f"{name} {fate}. Import what it gave from TensorFlow's API, if it is there."


def find_dimension_values(tree: ast.AST, root: str) -> Notes:
    """Yield the line and a note for each `.value` of a dimension; `root` is the file's name for TensorFlow."""
    shape_names, dimension_names = _find_shape_names(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr == "value" and isinstance(node.ctx, ast.Load):
            owner = node.value
            if _is_dimension(owner, shape_names) or (isinstance(owner, ast.Name) and owner.id in dimension_names):
                yield (
                    node.lineno,
                    "dimensions are ints today. Remove .value, or call "
                    f"{root}.disable_v2_tensorshape() after the imports.",
                )


def _find_shape_names(tree: ast.AST) -> tuple[set[str], set[str]]:
    """Return the names of the variables that hold shapes, and of those that hold dimensions."""
    shape_names: set[str] = set()
    dimension_names: set[str] = set()
    # A second pass finds variables that are assigned from variables further down.
    for _ in range(2):
        for target, expression in _list_assignments(tree):
            if isinstance(target, ast.Name):
                if _is_shape(expression, shape_names):
                    shape_names.add(target.id)
                if _is_dimension(expression, shape_names):
                    dimension_names.add(target.id)
            elif isinstance(target, ast.Tuple | ast.List) and _is_shape(expression, shape_names):
                dimension_names |= {element.id for element in target.elts if isinstance(element, ast.Name)}
        for target, expression in _list_loops(tree):
            if isinstance(target, ast.Name) and _is_shape(expression, shape_names):
                dimension_names.add(target.id)
    return shape_names, dimension_names


def _list_assignments(tree: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Yield the target and the value of each assignment; for `a, b = x, y` also (a, x) and (b, y)."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                yield target, node.value
                if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                    yield from zip(target.elts, node.value.elts, strict=False)
        elif isinstance(node, ast.AnnAssign | ast.NamedExpr) and node.value is not None:
            yield node.target, node.value


def _list_loops(tree: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Yield the target and the iterable of each loop and comprehension."""
    for node in ast.walk(tree):
        if isinstance(node, ast.For | ast.comprehension):
            yield node.target, node.iter


def _is_shape(node: ast.expr, shape_names: Container[str]) -> bool:
    """Return whether an expression is a TensorShape, or a slice of one, judged by its syntax.

    Args:
        node: the expression.
        shape_names: names of the variables that hold shapes.
    """
    if isinstance(node, ast.Name):
        return node.id in shape_names
    if isinstance(node, ast.Attribute):
        return node.attr == "shape"
    if isinstance(node, ast.Subscript):
        return isinstance(node.slice, ast.Slice) and _is_shape(node.value, shape_names)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        if node.func.attr in ("get_shape", "TensorShape"):
            return True
        # Methods of a shape that return a shape.
        is_shape_method = node.func.attr in ("with_rank", "with_rank_at_least", "merge_with", "concatenate")
        return is_shape_method and _is_shape(node.func.value, shape_names)
    return False


def _is_dimension(node: ast.expr, shape_names: Container[str]) -> bool:
    """Return whether an expression is an element of a TensorShape."""
    return (
        isinstance(node, ast.Subscript) and not isinstance(node.slice, ast.Slice) and _is_shape(node.value, shape_names)
    )

"""Code that a program runs with one release of TensorFlow alone, by its own test: an `if tf.__version__.startswith("1"):`, an
`if hasattr(tf, "log"):`, or a `try:` with `except AttributeError:`. It says nothing of the release that the program is written for.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Mapping

from tpudata.migrate.analysis.bindings import Binding, find_paths

_VERSIONS = frozenset({"__version__", "VERSION", "version"})
# Errors that a name raises in a release without it.
_RAISED = frozenset({"AttributeError", "ImportError", "ModuleNotFoundError"})


def find_guarded(tree: ast.AST, bindings: Mapping[str, Binding]) -> set[ast.AST]:
    """Return the nodes below each `if` that asks for TensorFlow's version or for a name of it, and each `try` of such a name."""
    asks = _NamesOfVersions(tree, bindings)
    nodes: set[ast.AST] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.If | ast.IfExp) and asks.tests(node.test):
            nodes.update(*map(ast.walk, ast.iter_child_nodes(node)))
        elif isinstance(node, ast.Try) and _expects_no_name(node.handlers):
            nodes.update(*map(ast.walk, (*node.body, *node.handlers)))
    return nodes


class _NamesOfVersions:
    """Tests of a release, by the names that hold TensorFlow's version or what follows from it."""

    def __init__(self, tree: ast.AST, bindings: Mapping[str, Binding]) -> None:
        self._bindings = bindings
        self._names: set[str] = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.Assign) and self.tests(node.value):
                self._names |= {target.id for target in node.targets if isinstance(target, ast.Name)}

    def tests(self, node: ast.AST) -> bool:
        """Return whether an expression asks for the version, or whether TensorFlow has a name."""
        if any(isinstance(item, ast.Name) and item.id in self._names for item in ast.walk(node)):
            return True
        if any(_VERSIONS & set(path) for _, path in find_paths(node, self._bindings)):
            return True
        return any(self._asks_for_name(item) for item in ast.walk(node) if isinstance(item, ast.Call))

    def _asks_for_name(self, call: ast.Call) -> bool:
        is_hasattr = isinstance(call.func, ast.Name) and call.func.id == "hasattr" and bool(call.args)
        return is_hasattr and next(find_paths(call.args[0], self._bindings), None) is not None


def _expects_no_name(handlers: Collection[ast.ExceptHandler]) -> bool:
    return any(name in _RAISED for handler in handlers for name in _list_caught(handler.type))


def _list_caught(node: ast.expr | None) -> Iterator[str]:
    for item in node.elts if isinstance(node, ast.Tuple) else [node]:
        if isinstance(item, ast.Name):
            yield item.id

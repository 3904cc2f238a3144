"""Code that a file runs with only one release of TensorFlow, by its own test: an `if tf.__version__.startswith("1"):`, an
`if hasattr(tf, "log"):`, or a `try:` with `except AttributeError:`. This code does not show which release the file is written
for.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Mapping

from tpudata.migrate.analysis.bindings import Binding, find_paths

# Names of TensorFlow's version below `tensorflow`.
_VERSION_NAMES = frozenset({"__version__", "VERSION", "version"})
# Errors that the use of a name raises in a release without it.
_MISSING_NAME_ERRORS = frozenset({"AttributeError", "ImportError", "ModuleNotFoundError"})


def find_guarded_nodes(tree: ast.AST, bindings: Mapping[str, Binding]) -> set[ast.AST]:
    """Return the nodes that may run with only one release.

    These are the nodes inside each `if` that tests TensorFlow's version or names, and the nodes in the body and the handlers of
    each `try` that catches a missing name.
    """
    version_tests = _VersionTests(tree, bindings)
    nodes: set[ast.AST] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.If | ast.IfExp) and version_tests.is_version_test(node.test):
            nodes.update(*map(ast.walk, ast.iter_child_nodes(node)))
        elif isinstance(node, ast.Try) and _catches_missing_name(node.handlers):
            nodes.update(*map(ast.walk, (*node.body, *node.handlers)))
    return nodes


class _VersionTests:
    """Recognizer of expressions that test TensorFlow's release.

    Args:
        tree: syntax tree of the file.
        bindings: its names of TensorFlow.
    """

    def __init__(self, tree: ast.AST, bindings: Mapping[str, Binding]) -> None:
        self._bindings = bindings
        # Variables that hold the version or the result of a test; later assignments may use them.
        self._names: set[str] = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.Assign) and self.is_version_test(node.value):
                self._names |= {target.id for target in node.targets if isinstance(target, ast.Name)}

    def is_version_test(self, node: ast.AST) -> bool:
        """Return whether an expression tests the version of TensorFlow, or whether TensorFlow has a name."""
        # Variables that hold the version or the result of a test also count.
        if any(isinstance(child, ast.Name) and child.id in self._names for child in ast.walk(node)):
            return True
        if any(_VERSION_NAMES & set(path) for _, path in find_paths(node, self._bindings)):
            return True
        return any(self._is_hasattr_of_tensorflow(child) for child in ast.walk(node) if isinstance(child, ast.Call))

    def _is_hasattr_of_tensorflow(self, call: ast.Call) -> bool:
        """Return whether a call is a `hasattr` of TensorFlow or a part of it."""
        is_hasattr = isinstance(call.func, ast.Name) and call.func.id == "hasattr" and bool(call.args)
        return is_hasattr and next(find_paths(call.args[0], self._bindings), None) is not None


def _catches_missing_name(handlers: Collection[ast.ExceptHandler]) -> bool:
    """Return whether an `except` catches an error that the use of a name raises in a release without it."""
    return any(name in _MISSING_NAME_ERRORS for handler in handlers for name in _list_caught_errors(handler.type))


def _list_caught_errors(node: ast.expr | None) -> Iterator[str]:
    """Yield the names of the classes that an `except` catches, without dotted names.

    Args:
        node: the expression after `except`; None for a bare `except:`.
    """
    for error_class in node.elts if isinstance(node, ast.Tuple) else [node]:
        if isinstance(error_class, ast.Name):
            yield error_class.id

"""Uses of TensorFlow 1's sessions and placeholders by code that no estimator calls: TensorFlow 2's behaviour runs it eagerly."""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from tpudata.migrate.analysis.bindings import Binding, dotted_name, tensorflow_path

# Names that need a graph, and that only a program's own loop has: a model_fn and an input_fn have no session.
_LOOPS = frozenset(
    {
        *("Session", "InteractiveSession", "summary.FileWriter", "train.MonitoredSession", "train.Supervisor"),
        *("train.MonitoredTrainingSession", "train.SingularMonitoredSession", "train.SessionManager"),
    }
)
# Names that need a graph, which an estimator gives to a model_fn.
_GRAPHS = frozenset(
    {
        *("placeholder", "sparse_placeholder", "gradients", "train.Saver", "train.import_meta_graph", "train.batch"),
        *(
            "train.shuffle_batch",
            "train.string_input_producer",
            "train.slice_input_producer",
            "train.range_input_producer",
        ),
        "train.start_queue_runners",
    }
)


@dataclasses.dataclass(frozen=True)
class GraphUse:
    """A call that needs a graph.

    Attributes:
        line: its line.
        name: the function or class, such as `tf.Session`.
    """

    line: int
    name: str


@dataclasses.dataclass
class _Scope:
    """Code that runs together: a module, or a function.

    Attributes:
        calls: last parts of the names that it calls outside of a graph.
        uses: calls that need a graph and have none.
    """

    calls: set[str] = dataclasses.field(default_factory=set)
    uses: list[GraphUse] = dataclasses.field(default_factory=list)


class _Position(NamedTuple):
    """Position of a node: its scope, whether a graph is open there, and the node that holds it."""

    scope: _Scope
    has_graph: bool
    owner: ast.AST


class GraphUses:
    """The uses in the files of a program, by the names that its functions call.

    Args:
        trees: the files.
        bindings: names of TensorFlow in each.
    """

    def __init__(self, trees: Mapping[str, ast.Module], bindings: Mapping[str, Mapping[str, Binding]]) -> None:
        self._modules = {path: _GraphUseReader(bindings[path], tree) for path, tree in trees.items()}
        self._reached = self._find_reached(self._modules)

    def find(self, path: str) -> list[GraphUse]:
        """Return the uses in a file: all of sessions, and others in code that runs when some file is imported or started."""
        reached = self._reached
        reader = self._modules[path]
        uses = list(reader.module.uses)
        for name, scopes in reader.functions.items():
            for scope in scopes:
                loop_uses = (use for use in scope.uses if use.name in _LOOPS)
                uses += scope.uses if name in reached else loop_uses
        return sorted(set(uses), key=lambda use: use.line)

    def reaches_any(self, path: str) -> bool:
        """Return whether a file's module-level code reaches a use in any file."""
        if self._modules[path].module.uses:
            return True
        reached = self._find_reached([path])
        return any(
            scope.uses
            for reader in self._modules.values()
            for name in reader.functions.keys() & reached
            for scope in reader.functions[name]
        )

    def _find_reached(self, starts: Iterable[str]) -> set[str]:
        """Return the names of functions that the files' module-level code calls, directly or through others."""
        pending = set().union(*(self._modules[path].module.calls for path in starts))
        reached: set[str] = set()
        while pending:
            reached |= pending
            called = (
                scope.calls
                for reader in self._modules.values()
                for name in pending & reader.functions.keys()
                for scope in reader.functions[name]
            )
            pending = set().union(*called) - reached
        return reached


class _GraphUseReader:
    """The scopes of one file."""

    def __init__(self, bindings: Mapping[str, Binding], tree: ast.Module) -> None:
        self._bindings = bindings
        self._graphs = {
            target.id
            for node in ast.walk(tree)
            if isinstance(node, ast.Assign) and self._is_new_graph(node.value)
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        self.module = _Scope()
        # Scopes of functions and methods by name; a class's __init__ by the name of the class.
        self.functions: dict[str, list[_Scope]] = {}
        self._read_scopes(tree)

    def _read_scopes(self, tree: ast.Module) -> None:
        # A list, not a recursion: expressions may be nested deeper than Python's stack.
        pending: list[tuple[ast.AST, _Position]] = [(node, _Position(self.module, False, tree)) for node in tree.body]
        while pending:
            node, position = pending.pop()
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                inner = _Position(self._add_function(node, position.owner), False, node)
                pending += [(statement, inner) for statement in node.body]
            elif isinstance(node, ast.With):
                has_graph = position.has_graph
                for with_item in node.items:
                    pending.append((with_item, position._replace(has_graph=has_graph)))
                    has_graph = has_graph or self._opens_graph(with_item.context_expr)
                pending += [(statement, position._replace(has_graph=has_graph)) for statement in node.body]
            elif not isinstance(node, ast.Lambda):
                if isinstance(node, ast.Call) and not position.has_graph:
                    self._record_call(node, position.scope)
                pending += [(child, position._replace(owner=node)) for child in ast.iter_child_nodes(node)]

    def _add_function(self, node: ast.FunctionDef | ast.AsyncFunctionDef, owner: ast.AST) -> _Scope:
        scope = _Scope()
        is_constructor = isinstance(owner, ast.ClassDef) and node.name == "__init__"
        name = owner.name if is_constructor and isinstance(owner, ast.ClassDef) else node.name
        self.functions.setdefault(name, []).append(scope)
        return scope

    def _record_call(self, node: ast.Call, scope: _Scope) -> None:
        chain = dotted_name(node.func)
        path = tensorflow_path(node.func, self._bindings)
        name = ".".join(path) if path else ""
        if name in _LOOPS | _GRAPHS and not _passes_graph(node):
            scope.uses.append(GraphUse(node.lineno, name))
        if name == "app.run" or (chain is not None and chain[-2:] == ("app", "run")):
            functions = [
                argument.id
                for argument in (*node.args, *(keyword.value for keyword in node.keywords))
                if isinstance(argument, ast.Name)
            ]
            scope.calls.update(functions or ["main"])
        elif chain is not None and not path:
            scope.calls.add(chain[-1])
            # A thread calls its target.
            scope.calls.update(
                keyword.value.id
                for keyword in node.keywords
                if keyword.arg == "target" and isinstance(keyword.value, ast.Name)
            )
        elif isinstance(node.func, ast.Attribute) and not path:
            scope.calls.add(node.func.attr)

    def _is_new_graph(self, node: ast.AST) -> bool:
        return isinstance(node, ast.Call) and tensorflow_path(node.func, self._bindings) == ("Graph",)

    def _opens_graph(self, node: ast.AST) -> bool:
        """Return whether an expression of a `with` is the `as_default()` of a graph, or a session of one."""
        if not isinstance(node, ast.Call):
            return False
        if _passes_graph(node):
            return tensorflow_path(node.func, self._bindings) == ("Session",)
        if not isinstance(node.func, ast.Attribute) or node.func.attr != "as_default":
            return False
        owner = node.func.value
        chain = dotted_name(owner)
        return self._is_new_graph(owner) or (
            chain is not None and (chain[-1] in self._graphs or "graph" in chain[-1].lower())
        )


def _passes_graph(node: ast.Call) -> bool:
    return any(keyword.arg == "graph" for keyword in node.keywords)


def iterate_entries(trees: Mapping[str, ast.Module]) -> Iterator[str]:
    """Yield the files that are started as programs: those with an `if` on `__name__`."""
    for path, tree in trees.items():
        if any(
            isinstance(node, ast.If)
            and any(isinstance(part, ast.Name) and part.id == "__name__" for part in ast.walk(node.test))
            for node in tree.body
        ):
            yield path

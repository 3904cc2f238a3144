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
        uses: what needs a graph and has none.
    """

    calls: set[str] = dataclasses.field(default_factory=set)
    uses: list[GraphUse] = dataclasses.field(default_factory=list)


class _Place(NamedTuple):
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
        """Return the uses in a file: those of loops, and those that code outside of the functions of any file reaches."""
        reached = self._reached
        reader = self._modules[path]
        uses = list(reader.module.uses)
        for name, scopes in reader.functions.items():
            for scope in scopes:
                is_loop = (use for use in scope.uses if use.name in _LOOPS)
                uses += scope.uses if name in reached else is_loop
        return sorted(set(uses), key=lambda use: use.line)

    def reaches_any(self, path: str) -> bool:
        """Return whether the code of a file outside of its functions reaches a use in any file."""
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
        """Return the names of functions that the code outside of functions calls, by way of others too."""
        waiting = set().union(*(self._modules[path].module.calls for path in starts))
        reached: set[str] = set()
        while waiting:
            reached |= waiting
            called = (
                scope.calls
                for reader in self._modules.values()
                for name in waiting & reader.functions.keys()
                for scope in reader.functions[name]
            )
            waiting = set().union(*called) - reached
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
        # Methods and functions by name; a class by that of its __init__.
        self.functions: dict[str, list[_Scope]] = {}
        self._read(tree)

    def _read(self, tree: ast.Module) -> None:
        # A list, not a recursion: expressions may be nested deeper than Python's stack.
        waiting: list[tuple[ast.AST, _Place]] = [(node, _Place(self.module, False, tree)) for node in tree.body]
        while waiting:
            node, place = waiting.pop()
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                inner = _Place(self._add_function(node, place.owner), False, node)
                waiting += [(statement, inner) for statement in node.body]
            elif isinstance(node, ast.With):
                has_graph = place.has_graph
                for item in node.items:
                    waiting.append((item, place._replace(has_graph=has_graph)))
                    has_graph = has_graph or self._opens_graph(item.context_expr)
                waiting += [(statement, place._replace(has_graph=has_graph)) for statement in node.body]
            elif not isinstance(node, ast.Lambda):
                if isinstance(node, ast.Call) and not place.has_graph:
                    self._note_call(node, place.scope)
                waiting += [(child, place._replace(owner=node)) for child in ast.iter_child_nodes(node)]

    def _add_function(self, node: ast.FunctionDef | ast.AsyncFunctionDef, owner: ast.AST) -> _Scope:
        scope = _Scope()
        is_constructor = isinstance(owner, ast.ClassDef) and node.name == "__init__"
        name = owner.name if is_constructor and isinstance(owner, ast.ClassDef) else node.name
        self.functions.setdefault(name, []).append(scope)
        return scope

    def _note_call(self, node: ast.Call, scope: _Scope) -> None:
        chain = dotted_name(node.func)
        path = tensorflow_path(node.func, self._bindings)
        name = ".".join(path) if path else ""
        if name in _LOOPS | _GRAPHS and not _names_graph(node):
            scope.uses.append(GraphUse(node.lineno, name))
        if name == "app.run" or (chain is not None and chain[-2:] == ("app", "run")):
            functions = [
                item.id for item in (*node.args, *(word.value for word in node.keywords)) if isinstance(item, ast.Name)
            ]
            scope.calls.update(functions or ["main"])
        elif chain is not None and not path:
            scope.calls.add(chain[-1])
            # A thread calls the function that it gets.
            scope.calls.update(
                word.value.id for word in node.keywords if word.arg == "target" and isinstance(word.value, ast.Name)
            )
        elif isinstance(node.func, ast.Attribute) and not path:
            scope.calls.add(node.func.attr)

    def _is_new_graph(self, node: ast.AST) -> bool:
        return isinstance(node, ast.Call) and tensorflow_path(node.func, self._bindings) == ("Graph",)

    def _opens_graph(self, node: ast.AST) -> bool:
        """Return whether an expression of a `with` is the `as_default()` of a graph, or a session of one."""
        if not isinstance(node, ast.Call):
            return False
        if _names_graph(node):
            return tensorflow_path(node.func, self._bindings) == ("Session",)
        if not isinstance(node.func, ast.Attribute) or node.func.attr != "as_default":
            return False
        owner = node.func.value
        chain = dotted_name(owner)
        return self._is_new_graph(owner) or (
            chain is not None and (chain[-1] in self._graphs or "graph" in chain[-1].lower())
        )


def _names_graph(node: ast.Call) -> bool:
    return any(item.arg == "graph" for item in node.keywords)


def iterate_entries(trees: Mapping[str, ast.Module]) -> Iterator[str]:
    """Yield the files that are started as programs: those that ask for `__name__`."""
    for path, tree in trees.items():
        if any(
            isinstance(node, ast.If)
            and any(isinstance(part, ast.Name) and part.id == "__name__" for part in ast.walk(node.test))
            for node in tree.body
        ):
            yield path

"""Uses of TensorFlow 1's sessions and placeholders by code that no estimator calls: TensorFlow 2's behaviour runs it eagerly."""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Set
from typing import NamedTuple

from tpudata.migrate.analysis.bindings import Binding, find_tensorflow_path, split_dotted_name

# The sets are written as unpacked tuples, since the formatter puts each element of a set in a separate line.

# Names that need a graph, and that only a program's own training loop uses: a model_fn and an input_fn have no session.
_SESSION_NAMES = frozenset(
    {
        *("Session", "InteractiveSession", "summary.FileWriter", "train.MonitoredSession", "train.Supervisor"),
        *("train.MonitoredTrainingSession", "train.SingularMonitoredSession", "train.SessionManager"),
    }
)
# Names that need a graph; a model_fn may use them, since its estimator gives it a graph.
_GRAPH_NAMES = frozenset(
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
        name: the function or class below TensorFlow, such as `Session`.
    """

    line: int
    name: str


@dataclasses.dataclass
class _Scope:
    """Code that runs together: a module, or a function.

    Attributes:
        calls: last parts of the names that it calls without an open graph.
        uses: calls that need a graph, while none is open.
    """

    calls: set[str] = dataclasses.field(default_factory=set)
    uses: list[GraphUse] = dataclasses.field(default_factory=list)


class _Position(NamedTuple):
    """Position of a node: its scope, whether a graph is open there, and its parent node."""

    scope: _Scope
    has_graph: bool
    parent: ast.AST


class GraphUses:
    """The calls that need a graph, in all files. Which functions run is judged by the names that code calls.

    Args:
        trees: syntax trees of the files, by their paths.
        bindings: names of TensorFlow in each file, by its path.
    """

    def __init__(self, trees: Mapping[str, ast.Module], bindings: Mapping[str, Mapping[str, Binding]]) -> None:
        self._readers = {path: _GraphUseReader(bindings[path], tree) for path, tree in trees.items()}
        self._reached_names = self._find_reached_names(self._readers)

    def find(self, path: str) -> list[GraphUse]:
        """Return the uses in a file, sorted by line: sessions anywhere, other uses in code that importing or starting a file runs.

        Code that nothing in the files calls may be a model_fn: an estimator runs it with a graph, but it opens no session.
        """
        reader = self._readers[path]
        uses = list(reader.module.uses)
        for name, scopes in reader.functions.items():
            for scope in scopes:
                session_uses = (use for use in scope.uses if use.name in _SESSION_NAMES)
                uses += scope.uses if name in self._reached_names else session_uses
        return sorted(set(uses), key=lambda use: use.line)

    def reaches_use(self, path: str) -> bool:
        """Return whether a file's module-level code reaches a use in any file."""
        if self._readers[path].module.uses:
            return True
        return any(scope.uses for scope in self._list_scopes(self._find_reached_names([path])))

    def _find_reached_names(self, paths: Iterable[str]) -> set[str]:
        """Return the names of functions that the module-level code of files calls, directly or through other functions."""
        new_names = set().union(*(self._readers[path].module.calls for path in paths))
        reached_names: set[str] = set()
        while new_names:
            reached_names |= new_names
            new_names = set().union(*(scope.calls for scope in self._list_scopes(new_names))) - reached_names
        return reached_names

    def _list_scopes(self, names: Set[str]) -> Iterator[_Scope]:
        """Yield the scopes of the functions with these names in all files."""
        for reader in self._readers.values():
            for name in reader.functions.keys() & names:
                yield from reader.functions[name]


class _GraphUseReader:
    """The scopes of one file.

    Args:
        bindings: names of TensorFlow in the file.
        tree: its syntax tree.

    Attributes:
        module: scope of the module-level code.
        functions: scopes of functions and methods by name; the scope of an `__init__` has the name of its class.
    """

    def __init__(self, bindings: Mapping[str, Binding], tree: ast.Module) -> None:
        self._bindings = bindings
        # Variables that hold a tf.Graph.
        self._graph_variables = {
            target.id
            for node in ast.walk(tree)
            if isinstance(node, ast.Assign) and self._is_new_graph(node.value)
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        self.module = _Scope()
        self.functions: dict[str, list[_Scope]] = {}
        self._read_scopes(tree)

    def _read_scopes(self, tree: ast.Module) -> None:
        """Fill the scopes with the calls of the file, except calls in lambdas or inside a `with` of a graph."""
        # A list of pending nodes replaces a recursion, since expressions may be nested deeper than Python's stack.
        top = _Position(self.module, has_graph=False, parent=tree)
        pending: list[tuple[ast.AST, _Position]] = [(node, top) for node in tree.body]
        while pending:
            node, position = pending.pop()
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                # Where a function is defined does not matter: it may be called without the graph.
                scope = self._add_function(node, position.parent)
                inner_position = _Position(scope, has_graph=False, parent=node)
                pending += [(statement, inner_position) for statement in node.body]
            elif isinstance(node, ast.With):
                has_graph = position.has_graph
                # An item runs inside the contexts of the items before it.
                for with_item in node.items:
                    pending.append((with_item, position._replace(has_graph=has_graph)))
                    has_graph = has_graph or self._opens_graph(with_item.context_expr)
                pending += [(statement, position._replace(has_graph=has_graph)) for statement in node.body]
            # The body of a lambda runs later, in code that is not known here.
            elif not isinstance(node, ast.Lambda):
                if isinstance(node, ast.Call) and not position.has_graph:
                    self._record_call(node, position.scope)
                pending += [(child, position._replace(parent=node)) for child in ast.iter_child_nodes(node)]

    def _add_function(self, node: ast.FunctionDef | ast.AsyncFunctionDef, parent: ast.AST) -> _Scope:
        """Add a scope for a function or method under the name that code calls it by, and return the scope."""
        scope = _Scope()
        # Code calls `__init__` by the name of its class.
        name = parent.name if isinstance(parent, ast.ClassDef) and node.name == "__init__" else node.name
        self.functions.setdefault(name, []).append(scope)
        return scope

    def _record_call(self, node: ast.Call, scope: _Scope) -> None:
        """Record a call outside of every `with graph.as_default():`: a use if it needs a graph, or the functions it may call.

        Args:
            node: the call.
            scope: the function, or the module's top level, that contains it.
        """
        chain = split_dotted_name(node.func)
        path = find_tensorflow_path(node.func, self._bindings)
        name = ".".join(path) if path else ""
        if name in _SESSION_NAMES | _GRAPH_NAMES and not _passes_graph(node):
            scope.uses.append(GraphUse(node.lineno, name))
        if name == "app.run" or (chain is not None and chain[-2:] == ("app", "run")):
            # `app.run` calls the function that it gets, by default `main`.
            arguments = (*node.args, *(keyword.value for keyword in node.keywords))
            functions = [argument.id for argument in arguments if isinstance(argument, ast.Name)]
            scope.calls.update(functions or ["main"])
        # `path` is None for a name that is not TensorFlow's.
        elif chain is not None and not path:
            scope.calls.add(chain[-1])
            # A thread calls its target.
            scope.calls.update(
                keyword.value.id
                for keyword in node.keywords
                if keyword.arg == "target" and isinstance(keyword.value, ast.Name)
            )
        elif isinstance(node.func, ast.Attribute) and not path:
            # A method of an expression, such as `Trainer().run()`.
            scope.calls.add(node.func.attr)

    def _is_new_graph(self, node: ast.AST) -> bool:
        return isinstance(node, ast.Call) and find_tensorflow_path(node.func, self._bindings) == ("Graph",)

    def _opens_graph(self, node: ast.AST) -> bool:
        """Return whether an expression of a `with` is the `as_default()` of a graph, or a `Session` with `graph=`."""
        if not isinstance(node, ast.Call):
            return False
        # A session that gets a graph makes it the default.
        if _passes_graph(node):
            return find_tensorflow_path(node.func, self._bindings) == ("Session",)
        if not isinstance(node.func, ast.Attribute) or node.func.attr != "as_default":
            return False
        owner = node.func.value
        chain = split_dotted_name(owner)
        # Attributes and parameters are judged by their names.
        return self._is_new_graph(owner) or (
            chain is not None and (chain[-1] in self._graph_variables or "graph" in chain[-1].lower())
        )


def _passes_graph(node: ast.Call) -> bool:
    """Return whether a call has the argument `graph=`, as the call of a session may."""
    return any(keyword.arg == "graph" for keyword in node.keywords)


def find_entry_files(trees: Mapping[str, ast.Module]) -> set[str]:
    """Return the paths of the files that are started as programs: the files with an `if` on `__name__`."""
    return {path for path, tree in trees.items() if any(map(_tests_module_name, tree.body))}


def _tests_module_name(statement: ast.stmt) -> bool:
    """Return whether a statement is an `if` on `__name__`, such as `if __name__ == "__main__":`."""
    return isinstance(statement, ast.If) and any(
        isinstance(node, ast.Name) and node.id == "__name__" for node in ast.walk(statement.test)
    )

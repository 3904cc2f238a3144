"""Draws inside functions: of conditions, loops and calls, which get a position and the number of the replica as further inputs.

The position tells the runs of a function apart: it is a hash of the caller's position and the calling node's name, and in a loop it
is carried from one iteration to the next.
"""

import dataclasses
import hashlib
from collections.abc import Iterable
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import context

from tpudata.estimator.api.errors import ModelFnValueError
from tpudata.estimator.graph.draws.nodes import CALL, Scope, derive_position, output_arguments, rewrite_node

_POSITION, _REPLICA = "tpudata_position", "tpudata_replica"
_TYPES = {_POSITION: tf.uint64, _REPLICA: tf.int32}
_NEXT = "tpudata_next"


@dataclasses.dataclass(frozen=True)
class _CallKind:
    """A type of nodes that call functions.

    Attributes:
        functions: attributes that name the functions, one or a list each.
        types: attribute with the types of the functions' arguments.
        skipped: number of inputs before these arguments.
        body: the attribute among `functions` with the body of a loop, or None.
    """

    functions: tuple[str, ...]
    types: str = "Tin"
    skipped: int = 0
    body: str | None = None


_CALL_KINDS = {
    CALL: _CallKind(("f",)),
    "StatefulPartitionedCall": _CallKind(("f",)),
    "If": _CallKind(("then_branch", "else_branch"), skipped=1),
    "StatelessIf": _CallKind(("then_branch", "else_branch"), skipped=1),
    "Case": _CallKind(("branches",), skipped=1),
    "StatelessCase": _CallKind(("branches",), skipped=1),
    "While": _CallKind(("cond", "body"), types="T", body="body"),
    "StatelessWhile": _CallKind(("cond", "body"), types="T", body="body"),
}


class DrawRewriter:
    """Rewriter of the random operations of a graph and of all functions that it calls.

    Args:
        graph_def: the `GraphDef`, which is not changed.
    """

    def __init__(self, graph_def: Any) -> None:
        self._graph_def = graph_def
        self._functions = {item.signature.name: item for item in graph_def.library.function}
        self._added: dict[str, Any] = {}
        self._rewritten: dict[tuple[str, frozenset[int], bool, bool], str] = {}
        self._drawing: dict[tuple[str, frozenset[int]], bool] = {}

    def rewrite(self, step: str, replica: str) -> Any:
        """Return the graph in which all random operations draw by their seeds, the step and the replica.

        Args:
            step: name of an int64 scalar, the number of steps done; the graph need not contain it.
            replica: name of an int32 scalar, the number of the replica; the graph need not contain it.

        Raises:
            ModelFnValueError: an operation draws and cannot be replaced.
        """
        result = type(self._graph_def)()
        result.CopyFrom(self._graph_def)
        del result.node[:]
        scope = Scope(step, replica, False, frozenset(), {node.name: node for node in self._graph_def.node})
        result.node.extend(self._nodes(self._graph_def.node, scope))
        result.library.function.extend(self._added.values())
        # A compiled function looks up there what it calls; importing the graph adds functions to the importing graph alone.
        for definition in self._added.values():
            context.context().add_function_def(definition)
        return result

    def _nodes(self, nodes: Iterable[Any], scope: Scope) -> list[Any]:
        # In the same position: nodes are imported in this order, which is also the order of effects.
        return [made for node in nodes for made in self._node(node, scope)]

    def _node(self, node: Any, scope: Scope) -> list[Any]:
        kind = self._call_kind(node)
        if kind is not None:
            return self._call(node, kind, scope)
        for name in _function_attributes(node):
            if any(self._draws(item.name, frozenset()) for item in _called(node, name)):
                raise ModelFnValueError(
                    f"model_fn: {node.name!r} cannot draw on a TPU or on several devices (got a random operation in the function "
                    f"of {node.op}, expected it in a condition, a loop or a tf.function). Draw outside, and give the values to it."
                )
        made, definitions = rewrite_node(node, scope)
        self._add(definitions)
        return made

    def _call_kind(self, node: Any) -> _CallKind | None:
        return _CallKind(()) if node.op in self._functions else _CALL_KINDS.get(node.op)

    def _call(self, node: Any, kind: _CallKind, scope: Scope) -> list[Any]:
        """Return the nodes that replace one that calls functions."""
        made = type(node)()
        made.CopyFrom(node)
        seeds = self._keras_seeds(node, kind, scope)
        names = (
            [node.op] if not kind.functions else [item.name for key in kind.functions for item in _called(node, key)]
        )
        is_drawing = any(self._draws(name, seeds) for name in names)
        for key in kind.functions:
            for item in _called(made, key):
                item.name = self._function(item.name, seeds, is_drawing, is_drawing and key == kind.body)
        if not kind.functions:
            made.op = self._function(node.op, seeds, is_drawing, False)
        if not is_drawing:
            return [made]
        before, definitions = derive_position(node, scope)
        self._add(definitions)
        data = [item for item in node.input if not item.startswith("^")]
        del made.input[:]
        made.input.extend([*data, scope.output(before[-1].name), scope.replica, *node.input[len(data) :]])
        if kind.functions:
            made.attr[kind.types].list.type.extend(item.as_datatype_enum for item in _TYPES.values())
        if kind.body and "output_shapes" in made.attr and made.attr["output_shapes"].list.shape:
            made.attr["output_shapes"].list.shape.extend(tf.TensorShape([]).as_proto() for _ in _TYPES)
        return [*before, made]

    def _draws(self, name: str, seeds: frozenset[int]) -> bool:
        """Return whether a function has draws that depend on the position or the replica.

        Args:
            name: name of the function.
            seeds: numbers of its arguments that are random states of Keras 3.
        """
        if name not in self._functions:
            return False
        if (name, seeds) not in self._drawing:
            scope = self._scope(name, seeds)
            self._drawing[name, seeds] = any(self._is_drawing(node, scope) for node in scope.nodes.values())
        return self._drawing[name, seeds]

    def _is_drawing(self, node: Any, scope: Scope) -> bool:
        kind = self._call_kind(node)
        if kind is None:
            inner = [item.name for key in _function_attributes(node) for item in _called(node, key)]
            return scope.needs_inputs(node) or any(self._draws(name, frozenset()) for name in inner)
        names = (
            [node.op] if not kind.functions else [item.name for key in kind.functions for item in _called(node, key)]
        )
        return any(self._draws(name, self._keras_seeds(node, kind, scope)) for name in names)

    def _keras_seeds(self, node: Any, kind: _CallKind, scope: Scope) -> frozenset[int]:
        data = [item for item in node.input if not item.startswith("^")][kind.skipped :]
        return frozenset(number for number, item in enumerate(data) if scope.is_keras_seed(item))

    def _scope(self, name: str, seeds: frozenset[int]) -> Scope:
        function = self._functions[name]
        arguments = [item.name for item in function.signature.input_arg]
        states = frozenset(arguments[number] for number in seeds)
        return Scope(_POSITION, _REPLICA, True, states, {node.name: node for node in function.node_def})

    def _function(self, name: str, seeds: frozenset[int], is_drawing: bool, is_body: bool) -> str:
        """Return the name of the rewritten function, which is added to the library.

        Args:
            name: name of the function.
            seeds: numbers of its arguments that are random states of Keras 3.
            is_drawing: whether to add the arguments for draws.
            is_body: whether to return them, too, for the next iteration.
        """
        if name not in self._functions:
            return name
        key = (name, seeds, is_drawing, is_body)
        if key not in self._rewritten:
            self._rewritten[key] = self._rewrite_function(*key)
        return self._rewritten[key]

    def _rewrite_function(self, name: str, seeds: frozenset[int], is_drawing: bool, is_body: bool) -> str:
        old, scope = self._functions[name], self._scope(name, seeds)
        made = type(old)()
        made.CopyFrom(old)
        del made.node_def[:]
        made.node_def.extend(self._nodes(old.node_def, scope))
        _rename_outputs(made, scope)
        if is_drawing:
            _add_arguments(made)
        if is_body:
            self._return_arguments(made, scope)
        if made == old:
            return name
        # Equal functions have the same name in each process, and different ones never have.
        digest = hashlib.sha256(made.SerializeToString(deterministic=True)).hexdigest()[:16]
        made.signature.name = f"{name}_draws_{digest}"
        self._add([made])
        return str(made.signature.name)

    def _return_arguments(self, function: Any, scope: Scope) -> None:
        made, definitions = derive_position(tf.compat.v1.NodeDef(name=_NEXT), scope)
        self._add(definitions)
        function.node_def.extend(made)
        for name, value in ((_POSITION, scope.output(made[-1].name)), (_REPLICA, _REPLICA)):
            function.signature.output_arg.add(name=f"{name}_out", type=_TYPES[name].as_datatype_enum)
            function.ret[f"{name}_out"] = value

    def _add(self, definitions: Iterable[Any]) -> None:
        self._added.update({item.signature.name: item for item in definitions})


def _add_arguments(function: Any) -> None:
    for name, dtype in _TYPES.items():
        function.signature.input_arg.add(name=name, type=dtype.as_datatype_enum)
    if "_input_shapes" in function.attr:
        function.attr["_input_shapes"].list.shape.extend(tf.TensorShape([]).as_proto() for _ in _TYPES)


def _rename_outputs(function: Any, scope: Scope) -> None:
    """Name the outputs of replaced nodes as those of calls, for all that take them."""
    replaced = {}
    for node in function.node_def:
        old = scope.nodes.get(node.name)
        if old is not None and node.op == CALL != old.op:
            for number, name in enumerate(output_arguments(old)):
                replaced[scope.output(node.name, name)] = scope.output(node.name, number=number)
    for node in function.node_def:
        node.input[:] = [replaced.get(item, item) for item in node.input]
    for key, value in function.ret.items():
        function.ret[key] = replaced.get(value, value)


def _function_attributes(node: Any) -> list[str]:
    """Return the attributes of a node that name functions; those with an underscore are notes, which no kernel reads."""
    return [
        name
        for name, value in node.attr.items()
        if not name.startswith("_") and (value.HasField("func") or value.list.func)
    ]


def _called(node: Any, name: str) -> list[Any]:
    """Return the functions that an attribute names."""
    value = node.attr[name]
    return [value.func] if value.HasField("func") else list(value.list.func)

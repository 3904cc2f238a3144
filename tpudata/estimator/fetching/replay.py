"""Part of a scratch graph, computed on real data and real variables.

A step needs no second trace of model_fn: the operations for its fetches are copied from the graph that `trace_function` made. As
in a session, operations on which no fetch depends do not run, such as initializers, or the train_op that v1 programs make in all
modes.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import tensorflow as tf

from tpudata.devices.errors import ModelFnValueError
from tpudata.devices.graphs.collectives import lower_collectives
from tpudata.devices.graphs.graph_copy import copy_graph, list_input_tensor_names
from tpudata.devices.graphs.graph_walk import find_needed_operations, is_effect
from tpudata.estimator.state.blueprint import Blueprint
from tpudata.tensor_types import Tensors


def _lower_for_one_replica(graph_def: tf.compat.v1.GraphDef) -> tf.compat.v1.GraphDef:
    """Return the graph with each sum over replicas replaced by the value of the only replica."""
    return lower_collectives(graph_def, 1)


class Replay:
    """Copy of the part of a scratch graph that computes some tensors and runs some operations.

    Attributes:
        operations: operations of the scratch graph that are copied.
        uses: names of the variables that the operations read or may change.
        writes: names of the variables that the operations may change.

    Args:
        blueprint: blueprint of the scratch graph.
        structure: nested structure of tensors of the scratch graph to compute.
        updates: operations of the scratch graph to run.
        passed_tensors: tensors of the scratch graph whose values are passed at the call instead of being computed.
        waits_for: predicate of an operation that is a control input of a needed one: whether it is also needed; None if all are.
        rewrite: function from the copied `GraphDef` to the one to run; it may add inputs, which must be among `passed_tensors`.
    """

    def __init__(
        self,
        blueprint: Blueprint,
        structure: Tensors,
        updates: Iterable[tf.Operation] = (),
        passed_tensors: Sequence[tf.Tensor] = (),
        waits_for: Callable[[tf.Operation], bool] | None = None,
        rewrite: Callable[[tf.compat.v1.GraphDef], tf.compat.v1.GraphDef] = _lower_for_one_replica,
    ) -> None:
        self._structure = structure
        self._tensors = tf.nest.flatten(structure)
        self._updates = list(updates)
        self._passed_tensors = list(passed_tensors)
        self._placeholders = blueprint.placeholders
        # Names of variables by the names of their handles in the scratch graph.
        names_by_handle = {info.handle_name: info.name for info in blueprint.variables}
        # Names of tensors that each call feeds; the search for needed operations stops at them.
        input_names = {*names_by_handle, *(tensor.name for tensor in [*self._placeholders, *self._passed_tensors])}
        roots = [tensor.op for tensor in self._tensors if tensor.name not in input_names] + self._updates
        needed_operations = find_needed_operations(roots, input_names, waits_for)
        self.operations = frozenset(needed_operations)
        effects = [operation for operation in needed_operations if is_effect(operation)]
        self.writes = frozenset(
            names_by_handle[tensor.name]
            for operation in effects
            for tensor in operation.inputs
            if tensor.name in names_by_handle
        )
        self._graph_def = rewrite(_copy_subgraph(blueprint, needed_operations))
        # The rewritten graph may lack inputs of the operations, or have additional ones.
        self._fed_names = list_input_tensor_names(self._graph_def) & input_names
        self._names_by_handle = {handle: name for handle, name in names_by_handle.items() if handle in self._fed_names}
        self.uses = frozenset(self._names_by_handle.values())

    def __call__(
        self, arguments: Iterable[Tensors], find_handle: Callable[[str], tf.Tensor], values: Sequence[tf.Tensor] = ()
    ) -> Tensors:
        """Add the copy to the graph that is being built.

        Args:
            arguments: nested structures of tensors, for the first or for all arguments of the blueprint's function.
            find_handle: function from a variable's name to the handle (scalar resource tensor) of the real variable.
            values: values of the constructor's `passed_tensors`, in their order: they replace these tensors of the scratch graph.

        Returns:
            The tensors, in the structure that the constructor got, with control dependencies on the updates.

        Raises:
            ModelFnValueError: a needed argument is missing.
        """
        inputs = [argument for argument in tf.nest.flatten(tuple(arguments)) if argument is not None]
        # Callers may omit the last arguments, such as the labels, if nothing needs them.
        feeds: dict[str, tf.Tensor] = {
            placeholder.name: tf.convert_to_tensor(tensor)
            for placeholder, tensor in zip(self._placeholders, inputs, strict=False)
        }
        feeds |= {handle: find_handle(name) for handle, name in self._names_by_handle.items()}
        # `copy_graph` only takes tensors of the current graph; tf.identity captures one from outside of a condition's branch.
        feeds |= {passed.name: tf.identity(tensor) for passed, tensor in zip(self._passed_tensors, values, strict=True)}
        missing = self._fed_names - feeds.keys()
        if missing:
            # Hooks are checked before, and tables and writers need no batch, so only the value of a metric can lack one here.
            raise ModelFnValueError(
                "The value of a metric needs a batch (expected only the metric's variables). Compute it from these."
            )
        names = [tensor.name for tensor in self._tensors]
        tensors = copy_graph(self._graph_def, feeds, names, [operation.name for operation in self._updates])
        return tf.nest.pack_sequence_as(self._structure, tensors)


def _copy_subgraph(blueprint: Blueprint, operations: Collection[tf.Operation]) -> tf.compat.v1.GraphDef:
    """Return the `GraphDef` of some operations of a scratch graph; all copies of it share tables and summary writers."""
    graph_def = blueprint.extract_subgraph(operations)
    for node in graph_def.node:
        # TensorFlow shares resources of the same name, such as tables, between graphs. `key` differs between traces of a model,
        # since each has separate tables; `writer_key` does not, since their writers continue one event file.
        if node.op == "SummaryWriter":
            node.attr["shared_name"].s = f"{node.name}_{blueprint.writer_key}".encode()
        elif "shared_name" in node.attr and node.op != "VarHandleOp" and not node.attr["shared_name"].s:
            node.attr["shared_name"].s = f"{node.name}_{blueprint.key}".encode()
    return graph_def


def run_on_host(replay: Replay, variables: Mapping[str, tf.Variable]) -> None:
    """Run the copied operations of a replay that needs no batch, once and now, on the CPU of this host."""
    with tf.device("CPU:0"):
        tf.function(lambda: replay((), make_handle_getter(variables)), autograph=False)()


def fill_tables(blueprint: Blueprint, variables: Mapping[str, tf.Variable]) -> None:
    """Fill the lookup tables of a scratch graph, as a session does before its first run."""
    initializers = blueprint.graph.get_collection(tf.compat.v1.GraphKeys.TABLE_INITIALIZERS)
    if initializers:
        run_on_host(Replay(blueprint, (), initializers), variables)


def make_handle_getter(variables: Mapping[str, tf.Variable]) -> Callable[[str], tf.Tensor]:
    """Return a function from a variable's name to its handle in the graph that is being built.

    Args:
        variables: variables by name.
    """
    graph = tf.compat.v1.get_default_graph()
    return lambda name: graph.capture(variables[name].handle)

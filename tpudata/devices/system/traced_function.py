"""A user's function as the graph of one replica, with collectives and draws that XLA compiles for several devices."""

import functools
from collections.abc import Callable, Sequence

import jax
import tensorflow as tf

from tpudata.devices.errors import ModelFnValueError
from tpudata.devices.graphs.collectives import lower_collectives
from tpudata.devices.graphs.graph_copy import copy_graph
from tpudata.devices.graphs.keras_state import is_keras_seed
from tpudata.devices.graphs.library import find_producer
from tpudata.devices.graphs.random_graph import rewrite_random_operations
from tpudata.devices.graphs.replica_context import replica_context
from tpudata.devices.graphs.traced_code import traced_code
from tpudata.error_text.libraries import NEW_VARIABLE
from tpudata.error_text.own import find_own_cause
from tpudata.errors import UsageError
from tpudata.tensor_types import Tensors

# Specs of the index of the replica and of the index of the call, which come before the function's tensors.
INDEX_SPECS = (tf.TensorSpec([], tf.int32), tf.TensorSpec([], tf.int64))


class TracedFunction:
    """The graph of a function of tensors and variables, traced once for one of several replicas.

    Attributes:
        variables: the `tf.Variable`s that the function uses, by a unique name.
        result_structure: structure of the results, a jax `PyTreeDef`.

    Args:
        function: a Python function or a `tf.function`.
        structure: structure of the function's arguments, a jax `PyTreeDef`.
        specs: specs of the tensors in the arguments, with static shapes.
        num_replicas: number of replicas that run the function together.

    Raises:
        ModelFnValueError: the function makes a variable at each call, reduces a dtype that has no sum, or has a sum over replicas
            or a random operation that XLA cannot compile.
        UsageError: the function uses a table, or another resource that is not a variable.
    """

    def __init__(
        self,
        function: Callable[..., Tensors],
        structure: jax.tree_util.PyTreeDef,
        specs: Sequence[tf.TensorSpec],
        num_replicas: int,
    ) -> None:
        # AutoGraph converts only the user's function, not the wrapper around it.
        tf_function = function if hasattr(function, "get_concrete_function") else tf.function(function)
        # A structure for each time that TensorFlow traces; the last one belongs to the graph.
        result_structures: list[jax.tree_util.PyTreeDef] = []

        def trace(replica: tf.Tensor, call_index: tf.Tensor, *tensors: tf.Tensor) -> list[tf.Tensor]:
            """Call the user's function as the code of one replica, and return the flat results."""
            del call_index  # `rewrite_random_operations` makes draws depend on it.
            with replica_context(num_replicas, replica, reduces_assignments=False):
                leaves, result_structure = jax.tree.flatten(tf_function(*jax.tree.unflatten(structure, tensors)))
                result_structures.append(result_structure)
                return [tf.convert_to_tensor(leaf) for leaf in leaves]

        try:
            graph = tf.function(trace, autograph=False).get_concrete_function(*INDEX_SPECS, *specs).graph
        except Exception as error:
            # AutoGraph replaces an error with one that shows lines of the user's code.
            own_error = find_own_cause(error)
            if own_error is not None:
                raise own_error from None
            if NEW_VARIABLE.search(str(error)):
                raise ModelFnValueError(
                    f"{traced_code()}: it makes a variable at each call (got a new tf.Variable, expected those of the first call). "
                    "Make variables, layers and optimizers outside of the function."
                ) from None
            raise
        self.result_structure = result_structures[-1]
        self._output_names = [tensor.name for tensor in graph.outputs]
        self._effect_names = [operation.name for operation in graph.control_outputs]
        # The tensors from outside that the function uses, by the names of their placeholders in the graph.
        captures = {internal.name: external for external, internal in graph.captures}
        self._argument_names = [tensor.name for tensor in graph.inputs if tensor.name not in captures]
        variables_by_handle_id = {id(variable.handle): variable for variable in graph.variables}
        # Variables may share a name.
        self.variables = {
            f"{variable.name}/{handle_id}": variable for handle_id, variable in variables_by_handle_id.items()
        }
        self._captured_variables = {
            name: variables_by_handle_id[id(external)]
            for name, external in captures.items()
            if id(external) in variables_by_handle_id
        }
        other_captures = {name: external for name, external in captures.items() if name not in self._captured_variables}
        self._constants = {
            name: external.numpy() for name, external in other_captures.items() if external.dtype != tf.resource
        }
        if len(self._constants) < len(other_captures):
            raise UsageError(
                f"{traced_code()} uses a table, an iterator or a variable that is gone (got a resource, expected "
                "arguments and tf.Variables). Compute on the host what needs it, and pass the result."
            )
        self._graph_def = self._prepare_for_devices(graph.as_graph_def(), num_replicas)

    def __call__(self, *tensors: tf.Tensor) -> list[tf.Tensor]:
        """Copy the graph into TensorFlow's default graph, and return its results.

        Args:
            tensors: the replica's index, the index of the call, and the tensors of the arguments.
        """
        # The graph of a function that is being traced; it captures the handles of variables.
        graph = tf.compat.v1.get_default_graph()
        feeds: dict[str, tf.Tensor] = dict(zip(self._argument_names, tensors, strict=True))
        feeds |= {name: graph.capture(variable.handle) for name, variable in self._captured_variables.items()}
        feeds |= {name: tf.constant(value) for name, value in self._constants.items()}
        return copy_graph(self._graph_def, feeds, self._output_names, self._effect_names)

    def _prepare_for_devices(self, graph_def: tf.compat.v1.GraphDef, num_replicas: int) -> tf.compat.v1.GraphDef:
        """Return the graph without its placeholders, with collectives that XLA compiles, and draws that depend on replica and call.

        The nodes of `graph_def` change. The placeholders stand for arguments, variables and constants, which calls feed.
        """
        input_names = (*self._argument_names, *self._captured_variables, *self._constants)
        placeholders = set(map(find_producer, input_names))
        # Copies, which do not depend on the list that `del` clears.
        nodes = [
            type(node).FromString(node.SerializeToString()) for node in graph_def.node if node.name not in placeholders
        ]
        del graph_def.node[:]
        graph_def.node.extend(nodes)
        replica, call_index = map(find_producer, self._argument_names[:2])
        keras_seeds = [
            find_producer(name)
            for name, variable in self._captured_variables.items()
            if is_keras_seed(variable.name, variable.dtype)
        ]
        # The index of the call stands for the step.
        return rewrite_random_operations(lower_collectives(graph_def, num_replicas), call_index, replica, keras_seeds)


def find_function_name(function: Callable[..., object]) -> str:
    """Return the name of a function, for messages; for an object without a name, the name of its class."""
    if isinstance(function, functools.partial):
        return find_function_name(function.func)
    return str(getattr(function, "__name__", None) or getattr(function, "name", None) or type(function).__name__)

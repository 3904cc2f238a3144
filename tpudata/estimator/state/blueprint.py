"""Blueprints: the variables and the result of a function, found by one trace in a scratch graph.

v1 code makes its variables while it builds a graph. `trace_function` traces it once in a scratch graph, which shows the variables
that the code makes and their initial values. The real variables are made once, outside any graph (`VariableStore`), and copies of
the scratch graph's operations use them (`Replay`).
"""

import contextlib
import dataclasses
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tpudata.devices.graphs.graph_walk import find_needed_operations
from tpudata.devices.graphs.keras_effects import KerasConditions
from tpudata.devices.graphs.keras_state import is_keras_seed
from tpudata.estimator.state.partition import Part
from tpudata.estimator.state.variable_requests import Key, VariableMaker, make_key_counter, make_variable_creator
from tpudata.tensor_types import Specs, Tensors

_Keys = tf.compat.v1.GraphKeys
_LOCAL_COLLECTIONS = (_Keys.LOCAL_VARIABLES, _Keys.METRIC_VARIABLES)


@dataclasses.dataclass(frozen=True)
class VariableInfo:
    """One variable that a function makes; names of tensors and operations are their names in the scratch graph.

    Attributes:
        key: `(name, n)`: the n-th request for `name`, the requested name without the numbers that make it unique.
        name: name in the graph and in a checkpoint.
        is_trainable: whether optimizers change it by default.
        collections: graph collections that contain it.
        handle_name: name of its handle, a resource tensor.
        synchronization, aggregation: its treatment on several replicas, as in `tf.Variable`.
        scratch: the variable of the scratch graph.
        first_initializer_name: name of the operation that assigned the initial value with which it was made.
    """

    key: Key
    name: str
    is_trainable: bool
    collections: tuple[str, ...]
    handle_name: str
    synchronization: tf.VariableSynchronization
    aggregation: tf.VariableAggregation
    scratch: tf.Variable = dataclasses.field(repr=False)
    first_initializer_name: str

    @property
    def initial_value_name(self) -> str:
        """Name of the tensor with the initial value.

        `tf.train.init_from_checkpoint` changes it, in model_fn and later in scaffold_fn.
        """
        with self.scratch.handle.graph.as_default():  # In eager execution, a variable does not give its initial value.
            name: str = self.scratch.initial_value.name
        return name

    @property
    def initializer_name(self) -> str:
        """Name of the operation that assigns the initial value."""
        name: str = self.scratch.initializer.name
        return name

    @property
    def part(self) -> Part | None:
        """The slice of a partitioned variable that this variable holds; None if it holds none."""
        return Part.from_variable(self.scratch)

    @property
    def is_keras_seed(self) -> bool:
        """Whether it is a Keras 3 seed generator's state, which must differ between replicas for different draws."""
        return is_keras_seed(self.name, self.scratch.dtype)

    @property
    def is_local(self) -> bool:
        """Whether it is state of one run (a metric's sums) that no checkpoint contains."""
        return any(collection in self.collections for collection in _LOCAL_COLLECTIONS)


@dataclasses.dataclass(frozen=True)
class Blueprint:
    """Result of the scratch trace of a function.

    Attributes:
        variables: variables in the order of creation.
        arguments: placeholders with which the function was called, in the structure of the specs; None for an absent one.
        result: result of the function; its tensors belong to the scratch graph.
        graph: the scratch graph.
        key: part of the names of its shared resources, such as tables, unique among the graphs of this process.
        writer_key: like `key`, for writers of summaries, whose event file other traces of the function continue.
    """

    variables: tuple[VariableInfo, ...]
    arguments: tuple[Tensors, ...]
    result: Any
    graph: tf.Graph
    key: str = dataclasses.field(default_factory=lambda: uuid.uuid4().hex)
    writer_key: str = dataclasses.field(default_factory=lambda: uuid.uuid4().hex)

    @property
    def placeholders(self) -> list[tf.Tensor]:
        """The placeholders of `arguments`, in the order of `tf.nest.flatten`."""
        return [argument for argument in tf.nest.flatten(self.arguments) if argument is not None]

    @property
    def initializer_names(self) -> set[str]:
        """Names of the operations that assign initial values, which are not updates by a step."""
        return {name for info in self.variables for name in (info.initializer_name, info.first_initializer_name)}

    def get_handle(self, info: VariableInfo) -> tf.Tensor:
        """Return the handle (scalar resource tensor) of a variable."""
        return self.graph.get_tensor_by_name(info.handle_name)

    def get_initial_value(self, info: VariableInfo) -> tf.Tensor:
        """Return the tensor of a variable's initial value."""
        return self.graph.get_tensor_by_name(info.initial_value_name)

    def identify_initial_value(self, info: VariableInfo) -> tuple[str, str]:
        """Return (key of the graph, tensor name), which identifies a variable's initial value."""
        return self.key, info.initial_value_name

    def compute_initial_values(self, variables: Sequence[VariableInfo]) -> dict[str, tf.Tensor]:
        """Return the initial values (tensors) of `variables`, by name; the same at every call if the graph has a seed."""
        if not variables:
            return {}
        tensors = [self.get_initial_value(info) for info in variables]
        # The other operations are not copied, since wrap_function would run all that have side effects.
        graph_def = self.extract_subgraph(find_needed_operations(tensor.op for tensor in tensors))

        def compute() -> Tensors:
            return tf.import_graph_def(graph_def, return_elements=[tensor.name for tensor in tensors], name="")

        # Importing the graph again restarts its random ops.
        with tf.device("CPU:0"):
            values = tf.compat.v1.wrap_function(compute, [])()
        return {info.name: value for info, value in zip(variables, values, strict=True)}

    def extract_subgraph(self, operations: Collection[tf.Operation]) -> tf.compat.v1.GraphDef:
        """Return the `GraphDef` of some operations of the scratch graph.

        It keeps all their data inputs, but control inputs only from one another, and no colocation.
        """
        names = {operation.name for operation in operations}
        graph_def = self.graph.as_graph_def()
        nodes = [node for node in graph_def.node if node.name in names]
        del graph_def.node[:]
        graph_def.node.extend(nodes)
        for node in graph_def.node:
            # "^NAME" is a control input.
            inputs = [name for name in node.input if not name.startswith("^") or name[1:] in names]
            del node.input[:]
            node.input.extend(inputs)
            node.attr.pop("_class", None)  # Names the operation with which this one is colocated.
        return graph_def


class _ScratchGraph(KerasConditions, tf.Graph):  # type: ignore[misc]  # TensorFlow is untyped
    """Scratch graph, which behaves as a graph of v1, except that conditions and loops made by Keras run all effects inside."""


def trace_function(function: Callable[..., Any], specs: Sequence[Specs], seed: int | None) -> Blueprint:
    """Call `function` with placeholders in a new scratch graph, and return the variables that it makes and its result.

    Args:
        function: function with an argument for each entry of `specs`.
        specs: for each argument a nested structure of `tf.TensorSpec`; None stays None.
        seed: seed of the graph, or None.
    """
    infos: list[VariableInfo] = []
    graph = _ScratchGraph()
    with graph.as_default():
        tf.compat.v1.set_random_seed(seed)
        arguments = tf.nest.map_structure(_make_placeholder, tuple(specs))
        with record_variables(infos):
            result = function(*arguments)
    return Blueprint(tuple(infos), arguments, result, graph)


@contextlib.contextmanager
def record_variables(infos: list[VariableInfo]) -> Iterator[None]:
    """Record the variables that are made in the default graph inside the context; they are added to `infos` at its end."""
    # By key: the variable, its collections, and the name of its initializer, which init_from_checkpoint may replace later.
    created: dict[Key, tuple[tf.Variable, tuple[str, ...], str]] = {}

    def record(key: Key, create: VariableMaker, kwargs: Mapping[str, Any]) -> tf.Variable:
        """Make a variable, and add it to `created`."""
        variable = create(**{**kwargs, "use_resource": True})  # Reference variables have no handle.
        collections = kwargs.get("collections")
        collections = (_Keys.GLOBAL_VARIABLES,) if collections is None else tuple(collections)
        created[key] = variable, collections, variable.initializer.name
        return variable

    with tf.variable_creator_scope(make_variable_creator(record, make_key_counter())):
        yield
    graph = tf.compat.v1.get_default_graph()
    trainable_ids = {id(variable) for variable in graph.get_collection(_Keys.TRAINABLE_VARIABLES)}
    infos += [
        VariableInfo(
            key=key,
            name=variable.op.name,
            is_trainable=id(variable) in trainable_ids,
            collections=collections,
            handle_name=variable.handle.name,
            synchronization=variable.synchronization,
            # v1 code has a separate enumeration.
            aggregation=tf.VariableAggregation(variable.aggregation.value),
            scratch=variable,
            first_initializer_name=first_initializer_name,
        )
        for key, (variable, collections, first_initializer_name) in created.items()
    ]


def _make_placeholder(spec: tf.TensorSpec | None) -> tf.Tensor | None:
    return None if spec is None else tf.compat.v1.placeholder(spec.dtype, spec.shape, name="tpudata_input")

"""host_call: a function of a TPUEstimatorSpec that the host runs at each step, usually to write summaries of the step's tensors."""

from collections.abc import Callable
from typing import TypeVar

import tensorflow as tf

from tpudata.devices.graphs.keras_state import fresh_keras_state
from tpudata.devices.processes.topology import Topology
from tpudata.estimator.api.spec import call_with_tensors, get_host_call
from tpudata.estimator.fetching.replay import Replay, make_handle_getter, run_on_host
from tpudata.estimator.graph.structure import make_batch_function
from tpudata.estimator.state.blueprint import trace_function
from tpudata.estimator.state.local_variables import LocalVariables
from tpudata.estimator.tracing.effects import CREATE_WRITER, list_results
from tpudata.estimator.tracing.replica_values import ReplicaValues, concatenate_specs
from tpudata.estimator.tracing.traced_model import TracedModel
from tpudata.tensor_types import Specs, Tensors

# Types of stateful operations that are not updates: handles, reads, and flushes, which run at checkpoints instead.
_WITHOUT_EFFECT = (
    "SummaryWriter",
    CREATE_WRITER,
    "FlushSummaryWriter",
    "VarHandleOp",
    "ReadVariableOp",
    "VarIsInitializedOp",
    "Placeholder",
)
_T = TypeVar("_T")


class HostCall:
    """A host_fn, built for the tensors of the replicas of this process, concatenated along their first axis.

    Its writers write to one file for as long as the model exists.

    Args:
        host_fn: as in TPUEstimatorSpec.
        specs: `tf.TensorSpec`s of the concatenated tensors.
        seed: seed of random ops, or None.
    """

    def __init__(self, host_fn: Callable[..., object], specs: Specs, seed: int | None) -> None:
        self._host_fn = host_fn
        self._seed = seed
        blueprint = trace_function(self._call_host_fn, (specs,), seed)
        self._local = LocalVariables(blueprint, blueprint.variables)
        operations = blueprint.graph.get_operations()
        initializer_names = blueprint.initializer_names
        updates = [
            operation
            for operation in operations
            if operation.op_def.is_stateful
            and operation.type not in _WITHOUT_EFFECT
            and operation.name not in initializer_names
        ]
        # The results of the updates are fetched, too, since a `tf.cond` only runs what its fetched outputs need.
        self._update_replay = Replay(blueprint, list_results(updates), updates)
        create_writers = Replay(
            blueprint, [], [operation for operation in operations if operation.type == CREATE_WRITER]
        )
        with blueprint.graph.as_default():
            writers = [operation.outputs[0] for operation in operations if operation.type == "SummaryWriter"]
            flushes = [tf.raw_ops.FlushSummaryWriter(writer=writer) for writer in writers]
        flush = Replay(blueprint, [], flushes)
        self._run_step = make_batch_function(lambda tensors: self._replay(self._update_replay, tensors), (specs,))
        self._flush = tf.function(lambda: self._replay(flush), autograph=False)
        run_on_host(create_writers, self._local.by_name)  # Opens the event files.

    def _call_host_fn(self, tensors: Tensors) -> object:
        return call_host_function(self._host_fn, tensors, self._seed)

    def _replay(self, replay: Replay, *arguments: Tensors) -> list[tf.Tensor]:
        """Add the operations of a replay to the tf.function that is being built, on the CPU; return its tensors."""
        with tf.device("CPU:0"):
            results: list[tf.Tensor] = replay(arguments, make_handle_getter(self._local.by_name))
        return results

    def update(self, tensors: Tensors, result: tf.Tensor | None = None) -> tf.Tensor | None:
        """Run host_fn for a step, and return `result`.

        Args:
            tensors: arguments of host_fn: NumPy arrays, with which it runs now, or tensors of the tf.function that is being traced,
                which then runs it at each call.
            result: tensor to return; required inside a tf.function, where it waits for host_fn, which would not run otherwise.
        """
        if not tf.inside_function():
            self._run_step(tensors)
            return result
        with tf.control_dependencies(self._replay(self._update_replay, tensors)):
            return tf.identity(result)

    def flush(self) -> None:
        """Flush the written summaries, so that readers see them."""
        self._flush()


def make_host_call(traced: TracedModel, topology: Topology, replicas: ReplicaValues) -> HostCall | None:
    """Return the spec's host_call; None if it has none, and in processes other than the chief."""
    host_call = get_host_call(traced.spec)
    if host_call is None or not topology.peers.is_chief:
        return None
    with traced.blueprint.graph.as_default():
        tensors = replicas.convert_host_tensors(host_call, "host_call")
    host_fn, _ = host_call
    specs = concatenate_specs(tensors, 1 if replicas.is_broadcast else topology.num_local_replicas)
    return HostCall(host_fn, specs, traced.seed)


def call_host_function(function: Callable[..., _T], tensors: Tensors, seed: int | None) -> _T:
    """Call a metric_fn or a host_fn with its tensors, with Keras' names and draws as in a new program.

    Args:
        function: the function.
        tensors: its tensors; by keyword if they are a dict.
        seed: seed of the draws, or None.
    """
    with fresh_keras_state(seed):
        return call_with_tensors(function, tensors)

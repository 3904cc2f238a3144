"""One training step of a replica, copied from the scratch graph.

A step runs the operations that a session would run for its loss, its train_op, its host_call and the fetches, and in addition
updates by Keras and, with `writes_summaries`, writes of `tf.summary`.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

import tensorflow as tf

from tpudata.devices.graphs.collectives import lower_collectives
from tpudata.devices.graphs.library import prune_functions
from tpudata.devices.graphs.random_graph import rewrite_random_operations
from tpudata.estimator.api.spec import get_host_call
from tpudata.estimator.fetching.replay import Replay, make_handle_getter
from tpudata.estimator.steps.step_fetches import StepFetches
from tpudata.estimator.tracing.effects import list_results, list_training_effects
from tpudata.estimator.tracing.replica_values import ReplicaValues
from tpudata.estimator.tracing.traced_model import TracedModel
from tpudata.tensor_types import Tensors


class ReplicaStep:
    """Training step of one replica.

    Attributes:
        writes: names of the variables that it may change.

    Args:
        traced: the model.
        fetches: fetches of the step.
        replicas: rules for values of replicas, which check the tensors of host_call.
        fed_names: names of the placeholders of the scratch graph that take values.
        writes_summaries: whether the step writes model_fn's tf.summary.
    """

    def __init__(
        self,
        traced: TracedModel,
        fetches: StepFetches,
        replicas: ReplicaValues,
        fed_names: Iterable[str] = (),
        *,
        writes_summaries: bool = False,
    ) -> None:
        graph = traced.blueprint.graph
        with graph.as_default():
            loss = tf.reshape(tf.cast(traced.spec.loss, tf.float32), [])
            host_tensors = replicas.convert_host_tensors(get_host_call(traced.spec), "host_call")
        summary_writes = traced.summary_writes if writes_summaries else ()
        self._takes_records_summaries = traced.records_summaries is not None
        self._replay = Replay(
            traced.blueprint,
            (loss, fetches.tensors, host_tensors, list_results(summary_writes)),
            updates=[*list_training_effects(traced.blueprint, summary_writes), *fetches.operations],
            passed_tensors=[  # Placeholders whose values `__call__` passes.
                traced.step,
                traced.replica,
                *([traced.records_summaries] if self._takes_records_summaries else []),
                *(graph.get_tensor_by_name(name) for name in fed_names),
            ],
            rewrite=make_replica_rewrite(traced),
        )
        self.writes = self._replay.writes

    def __call__(
        self,
        replica: tf.Tensor,
        records_summaries: tf.Tensor,
        batch: tuple[Tensors, Tensors],
        variables: Mapping[str, tf.Variable],
        feeds: Sequence[tf.Tensor],
    ) -> tuple[tf.Tensor, list[tf.Tensor], Tensors]:
        """Add the step to the graph that is being built.

        Args:
            replica: index of the replica (scalar int32).
            records_summaries: whether tf.summary writes (scalar bool).
            batch: (features, labels) of the replica; None for no labels.
            variables: the real variables by name.
            feeds: tensors for the placeholders `fed_names`, in their order.

        Returns:
            The loss (scalar float32), the fetched tensors, and the tensors of host_call.
        """
        step = tf.cast(variables["global_step"].read_value(), tf.int64)
        passed_values = [step, replica, *([records_summaries] if self._takes_records_summaries else []), *feeds]
        loss, fetched, host_tensors, write_results = self._replay(batch, make_handle_getter(variables), passed_values)
        # Writes of summaries are in a `tf.cond`, and only run if something waits for their results.
        with tf.control_dependencies(write_results):
            return tf.identity(loss), fetched, host_tensors


def make_replica_rewrite(traced: TracedModel) -> Callable[[tf.compat.v1.GraphDef], tf.compat.v1.GraphDef]:
    """Return the function from a copied `GraphDef` to the one that a replica runs.

    It lowers collectives, and makes random draws depend on the step. On devices, the new collectives and draws are operations that
    XLA compiles.
    """

    def rewrite(graph_def: tf.compat.v1.GraphDef) -> tf.compat.v1.GraphDef:
        """Return the graph with its collectives lowered and its random operations rewritten; on devices, also pruned."""
        replica_name = None if traced.num_replicas is None else traced.replica.op.name
        # XLA would also run nodes that TensorFlow skips.
        needed_graph_def = graph_def if replica_name is None else prune_functions(graph_def)
        lowered_graph_def = lower_collectives(needed_graph_def, traced.num_replicas or 1)
        return rewrite_random_operations(lowered_graph_def, traced.step.op.name, replica_name)

    return rewrite

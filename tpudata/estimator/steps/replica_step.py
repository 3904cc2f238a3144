"""One training step of a replica, copied from the scratch graph.

A step only runs operations that a session would run for its loss, its train_op and the fetches.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

import tensorflow as tf

from tpudata.devices.graphs.collectives import lower_collectives
from tpudata.devices.graphs.library import prune_functions
from tpudata.devices.graphs.random_graph import draw_by_step
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
        variables: names of the variables that it uses.
        writes: names of those that it may change.

    Args:
        traced: the model.
        fetches: fetches of the step.
        replicas: rules for values of replicas, which check the tensors of host_call.
        feeds: names of the placeholders of the scratch graph that take values.
        writes_summaries: whether the step writes model_fn's tf.summary.
    """

    def __init__(
        self,
        traced: TracedModel,
        fetches: StepFetches,
        replicas: ReplicaValues,
        feeds: Iterable[str] = (),
        *,
        writes_summaries: bool = False,
    ) -> None:
        graph = traced.blueprint.graph
        with graph.as_default():
            loss = tf.reshape(tf.cast(traced.spec.loss, tf.float32), [])
            host = replicas.convert_host_tensors(get_host_call(traced.spec), "host_call")
        writes = traced.summary_writes if writes_summaries else ()
        self._record = [] if traced.record is None else [traced.record]
        self._replay = Replay(
            traced.blueprint,
            (loss, fetches.tensors, host, list_results(writes)),
            [*list_training_effects(traced.blueprint, writes), *fetches.operations],
            [traced.step, traced.replica, *self._record, *(graph.get_tensor_by_name(name) for name in feeds)],
            rewrite=make_replica_rewrite(traced),
        )
        self.variables = self._replay.reads
        self.writes = self._replay.writes

    def __call__(
        self,
        replica_and_record: tuple[tf.Tensor, tf.Tensor],
        features: Tensors,
        labels: Tensors,
        variables: Mapping[str, tf.Variable],
        feeds: Sequence[tf.Tensor],
    ) -> tuple[tf.Tensor, list[tf.Tensor], Tensors]:
        """Add the step to the graph that is being built.

        Args:
            replica_and_record: the replica's index (scalar int32), and whether tf.summary writes (scalar bool).
            features: features of the batch.
            labels: labels of the batch, or None.
            variables: the real variables by name.
            feeds: tensors of the shapes and dtypes of the placeholders, in their order.

        Returns:
            The loss (scalar float32), the fetched tensors, and the tensors of host_call.
        """
        replica, record = replica_and_record
        step = tf.cast(variables["global_step"].read_value(), tf.int64)
        loss, fetched, host, written = self._replay(
            (features, labels), make_handle_getter(variables), [step, replica, *([record] * len(self._record)), *feeds]
        )
        with tf.control_dependencies(written):
            return tf.identity(loss), fetched, host


def make_replica_rewrite(traced: TracedModel) -> Callable[[tf.compat.v1.GraphDef], tf.compat.v1.GraphDef]:
    """Return the function from a copied `GraphDef` to the one that a replica runs."""

    def rewrite(graph_def: tf.compat.v1.GraphDef) -> tf.compat.v1.GraphDef:
        replica_name = None if traced.num_replicas is None else traced.replica.op.name
        compiled = graph_def if replica_name is None else prune_functions(graph_def)
        return draw_by_step(lower_collectives(compiled, traced.num_replicas or 1), traced.step.op.name, replica_name)

    return rewrite

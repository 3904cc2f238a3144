"""Common base of the steps of all modes: variables, the session of hooks, and their requests."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tpudata.estimator.devices.topology import Topology
from tpudata.estimator.fetching.hook_session import HookSession
from tpudata.estimator.fetching.replay import Replay, handles_on_replica
from tpudata.estimator.state.blueprint import Blueprint
from tpudata.estimator.state.local_variables import LocalVariables
from tpudata.estimator.state.store import VariableStore
from tpudata.estimator.steps.step_fetches import StepFetches
from tpudata.estimator.tracing.metrics import raw_variable
from tpudata.estimator.tracing.replica_values import ReplicaValues
from tpudata.estimator.tracing.traced_model import TracedModel


def _nothing(traced: TracedModel) -> list[Any]:
    del traced
    return []


class Step:
    """A traced model on real variables. A mode's own class compiles it.

    Attributes:
        mode: a value of ModeKeys.
        saved: infos of the variables that checkpoints keep.
        variables: these variables by name.
        local: those that belong to one run, such as the sums of metrics.
        fetches: what hooks and summaries ask of the next step. When its version changes, the step must be built anew.
        replicas: how values of several replicas become one.

    Args:
        traced: the model.
        topology: runs the steps.
        store: holds the variables that checkpoints keep.
        broadcast: whether all replicas get the same rows.
        own_operations: returns the operations of the scratch graph that every step runs for their effect; None: none.
    """

    def __init__(
        self,
        traced: TracedModel,
        topology: Topology,
        store: VariableStore,
        *,
        broadcast: bool,
        own_operations: Callable[[TracedModel], list[Any]] = _nothing,
    ) -> None:
        self.mode = traced.mode
        self.fetches = StepFetches(traced, own_operations)
        self.replicas = ReplicaValues(topology, traced.specs, broadcast=broadcast)
        self._traced = traced
        self._topology = topology
        self._strategy = topology.strategy
        self._writes: frozenset[str] = frozenset()
        self._is_added_to = False
        local = _local_names(traced)
        infos = self.blueprint.variables
        self.saved = tuple(info for info in infos if info.name not in local)
        self.variables = store.create(self.blueprint, self.saved)
        self.local = LocalVariables(self.blueprint, [info for info in infos if info.name in local], self._strategy)
        self._by_name = {**self.variables, **self.local.by_name}
        self._initialize_tables()

    @property
    def blueprint(self) -> Blueprint:
        """The scratch graph."""
        return self._traced.blueprint

    @property
    def spec(self) -> Any:
        """The spec of the newest call of model_fn."""
        return self._traced.spec

    @property
    def global_step(self) -> int:
        """The step that the variables are at."""
        return int(self.variables["global_step"].numpy())

    @property
    def writes(self) -> bool:
        """Whether a step of evaluation or prediction assigns to variables that checkpoints keep."""
        return bool(self._writes & self.variables.keys())

    def session(self, *, is_added_to: bool) -> HookSession:
        """Return what the hooks of a run are given: a session of the scratch graph.

        Args:
            is_added_to: whether there are hooks or a scaffold. They add to the graph, and those of model_fn are made for one run:
                from the second such run on, model_fn is traced anew.
        """
        if is_added_to and self._is_added_to:
            self._traced = self._traced.again()
            self._initialize_tables()
            self.fetches.follow(self._traced)
        self._is_added_to |= is_added_to
        return HookSession(self.blueprint, self._by_name, self._strategy)

    def _initialize_tables(self) -> None:
        """Fill the lookup tables of model_fn, as a session does before its first run."""
        initializers = self.blueprint.graph.get_collection(tf.compat.v1.GraphKeys.TABLE_INITIALIZERS)
        if not initializers:
            return
        replay = Replay(self.blueprint, (), initializers)

        def fill() -> Any:
            return replay((), handles_on_replica(self._by_name))

        if self._topology.is_tpu or self._topology.num_replicas == 1:
            with tf.device("CPU:0"):
                tf.function(fill, autograph=False)()
        else:  # A table belongs to a device, so each replica has one.
            tf.function(lambda: self._strategy.run(fill), autograph=False)()

    def _replay(self, replay: Replay, arguments: tuple[Any, ...]) -> Any:
        """Run part of the scratch graph on each replica; returns per-replica values."""

        def step(*arguments: Any) -> Any:
            return replay(arguments, handles_on_replica(self._by_name))

        return self._strategy.run(step, args=arguments)


def _local_names(traced: TracedModel) -> set[str]:
    """Return the names of the variables that no checkpoint keeps."""
    names = {info.name for info in traced.blueprint.variables if info.is_local}
    metrics = getattr(traced.spec, "eval_metric_ops", None) or {}
    for metric in metrics.values():
        # A Keras metric's sums are state of one evaluation, too; they are in no collection that says so.
        names |= {raw_variable(variable).op.name for variable in getattr(metric, "variables", ())}
    return names

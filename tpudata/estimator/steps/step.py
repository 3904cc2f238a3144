"""Common base of the steps of all modes: variables, the session of hooks, and fetches."""

from collections.abc import Callable, Iterable
from typing import Any

from tpudata.devices.processes.topology import Topology
from tpudata.estimator.fetching.hook_session import HookSession
from tpudata.estimator.fetching.replay import fill_tables
from tpudata.estimator.state.blueprint import Blueprint
from tpudata.estimator.state.host_copies import HostCopies, OnlyOnHost
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
    """A traced model on real variables. The subclass of a mode compiles it.

    Attributes:
        mode: a value of ModeKeys.
        saved: infos of the variables that checkpoints contain.
        variables: these variables by name.
        local: variables that belong to one run, such as the sums of metrics.
        fetches: fetches of hooks and summaries from the next step; when their key changes, the step must be built again.
        replicas: rules by which values of several replicas become one.
        own: copies of `local` on the host.

    Args:
        traced: the model.
        topology: devices that run the steps.
        store: store of the variables that checkpoints contain.
        broadcast: whether all replicas get the same rows.
        own_operations: function that returns the operations of the scratch graph that every step runs for their effect.
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
        self.own: HostCopies = OnlyOnHost()
        self._traced = traced
        self._topology = topology
        self._copies = store.copies
        self._writes: frozenset[str] = frozenset()
        self._is_added_to = False
        local = local_names(traced)
        infos = self.blueprint.variables
        self.saved = tuple(info for info in infos if info.name not in local)
        self.variables = store.create(self.blueprint, self.saved)
        self.local = LocalVariables(self.blueprint, [info for info in infos if info.name in local])
        self._by_name = {**self.variables, **self.local.by_name}
        fill_tables(self.blueprint, self._by_name)

    @property
    def blueprint(self) -> Blueprint:
        """The scratch graph."""
        return self._traced.blueprint

    @property
    def spec(self) -> Any:
        """The spec of the last call of model_fn."""
        return self._traced.spec

    @property
    def global_step(self) -> int:
        """The global step of the variables."""
        self.copy_to_host(["global_step"])
        return int(self.variables["global_step"].numpy())

    @property
    def writes(self) -> bool:
        """Whether a step of evaluation or prediction assigns to variables that checkpoints contain."""
        return bool(self._writes & self.variables.keys())

    def session(self, *, is_added_to: bool) -> HookSession:
        """Return the session of a run's hooks, on the scratch graph.

        Args:
            is_added_to: whether there are hooks or a scaffold. They add to the graph, and model_fn makes its hooks for one run, so
                that model_fn is traced again from the second such run on.
        """
        if is_added_to and self._is_added_to:
            self._traced = self._traced.trace_again()
            fill_tables(self.blueprint, self._by_name)
            self.fetches.follow(self._traced)
        self._is_added_to |= is_added_to
        writes = self.host_summary_writes if self._topology.devices else None
        return HookSession(self.blueprint, self._by_name, self, writes)

    @property
    def host_summary_writes(self) -> tuple[Any, ...]:
        """Operations of model_fn that write tf.summary, if the step does not run them itself."""
        return self._traced.summary_writes if self._topology.devices else ()

    @property
    def record_name(self) -> str:
        """Name of the placeholder of whether tf.summary writes."""
        name: str = self._traced.record.name
        return name

    def copy_to_host(self, names: Iterable[str]) -> None:
        """Update the values of variables on the host."""
        names = list(names)
        self._copies.copy_to_host(name for name in names if name in self.variables)
        self.own.copy_to_host(name for name in names if name in self.local.by_name)

    def mark_changed_on_host(self, names: Iterable[str]) -> None:
        """Note that the host has written to variables, after `copy_to_host` of them."""
        names = list(names)
        self._copies.mark_changed_on_host(name for name in names if name in self.variables)
        self.own.mark_changed_on_host(name for name in names if name in self.local.by_name)

    def reset_local(self) -> None:
        """Set the variables that belong to one run to their initial values."""
        self.local.reset()
        self.own.mark_changed_on_host(self.local.by_name)


def local_names(traced: TracedModel) -> set[str]:
    """Return the names of the variables that no checkpoint contains."""
    names = {info.name for info in traced.blueprint.variables if info.is_local}
    metrics = getattr(traced.spec, "eval_metric_ops", None) or {}
    for metric in metrics.values():
        # The sums of a Keras metric are local, too, although they are in no collection of local variables.
        names |= {raw_variable(variable).op.name for variable in getattr(metric, "variables", ())}
    return names

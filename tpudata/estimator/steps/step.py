"""Common base of the steps of all modes: variables, the session of hooks, and fetches."""

from collections.abc import Callable, Iterable

import tensorflow as tf

from tpudata.devices.processes.topology import Topology
from tpudata.estimator.api.spec import ModelSpec, get_metric_ops
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


def _no_operations(traced: TracedModel) -> list[tf.Operation]:
    del traced
    return []


class Step:
    """A traced model on real variables. The subclass of a mode compiles it.

    Attributes:
        mode: a value of ModeKeys.
        saved: infos of the variables that checkpoints contain.
        variables: these variables by name.
        local: variables that belong to one run, such as the sums of metrics.
        fetches: fetches of hooks and summaries from the next step; if their key changes, the step must be built again.
        replicas: rules by which values of several replicas become one.
        own: copies of `local` on the host, and whether the devices have newer values.

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
        own_operations: Callable[[TracedModel], list[tf.Operation]] = _no_operations,
    ) -> None:
        self.mode = traced.mode
        self.fetches = StepFetches(traced, own_operations)
        self.replicas = ReplicaValues(topology, traced.specs, broadcast=broadcast)
        self.own: HostCopies = OnlyOnHost()
        self._traced = traced
        self._topology = topology
        self._copies = store.copies
        self._writes: frozenset[str] = frozenset()
        self._had_additions = False
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
    def spec(self) -> ModelSpec:
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

    def session(self, *, has_additions: bool) -> HookSession:
        """Return the session of a run's hooks, on the scratch graph.

        Args:
            has_additions: whether there are hooks or a scaffold, which add to the graph. From the second such run on, model_fn is
                traced again.
        """
        if has_additions and self._had_additions:
            self._traced = self._traced.trace_again()
            fill_tables(self.blueprint, self._by_name)
            self.fetches.follow(self._traced)
        self._had_additions |= has_additions
        writes = self.host_summary_writes if self._topology.devices else None
        return HookSession(self.blueprint, self._by_name, self, writes)

    @property
    def host_summary_writes(self) -> tuple[tf.Operation, ...]:
        """Operations of model_fn that write tf.summary, if the step does not run them itself."""
        return self._traced.summary_writes if self._topology.devices else ()

    @property
    def record_name(self) -> str:
        """Name of the bool placeholder that makes tf.summary write."""
        assert self._traced.record is not None  # Read only if there are summary writes, which need it.
        name: str = self._traced.record.name
        return name

    def copy_to_host(self, names: Iterable[str]) -> None:
        """Copy the devices' values of variables to the host, if they are newer."""
        names = list(names)
        self._copies.copy_to_host(name for name in names if name in self.variables)
        self.own.copy_to_host(name for name in names if name in self.local.by_name)

    def mark_changed_on_host(self, names: Iterable[str]) -> None:
        """Discard the devices' values of variables that the host has written to; call `copy_to_host` before the write."""
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
    for metric in get_metric_ops(traced.spec).values():
        # The sums of a Keras metric are local, too, although they are in no collection of local variables.
        names |= {raw_variable(variable).op.name for variable in getattr(metric, "variables", ())}
    return names

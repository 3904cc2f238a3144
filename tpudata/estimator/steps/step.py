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
from tpudata.estimator.tracing.effects import find_lost_writes
from tpudata.estimator.tracing.metrics import get_raw_variable
from tpudata.estimator.tracing.replica_values import ReplicaValues
from tpudata.estimator.tracing.traced_model import TracedModel


class Step:
    """A traced model on real variables. The subclass of a mode compiles it.

    It implements HostCopies for all its variables: the variables in the store and its local variables.

    Attributes:
        mode: a value of ModeKeys.
        saved: infos of the variables that checkpoints contain.
        variables: the variables of `saved` by name.
        local: other variables, which belong to one run, such as the sums of metrics.
        fetches: fetches of hooks and summaries from the next step; if their key changes, the step must be built again.
        replicas: rules by which values of several replicas become one.
        local_copies: object that keeps the values of `local` the same on the host and on the devices.

    Args:
        traced: the model.
        topology: devices that run the steps.
        store: store of the variables that checkpoints contain.
        is_broadcast: whether all replicas get the same rows.
        list_always_run: function from a trace to the operations of its scratch graph that every step runs, whatever is fetched.
    """

    def __init__(
        self,
        traced: TracedModel,
        topology: Topology,
        store: VariableStore,
        *,
        is_broadcast: bool,
        list_always_run: Callable[[TracedModel], list[tf.Operation]] = lambda _: [],
    ) -> None:
        self.mode = traced.mode
        self.fetches = StepFetches(traced, list_always_run)
        self.replicas = ReplicaValues(topology, traced.specs, is_broadcast=is_broadcast)
        self.local_copies: HostCopies = OnlyOnHost()  # Steps on several devices replace it.
        self._traced = traced
        self._topology = topology
        self._copies = store.copies
        # Names of the variables to which a step of evaluation or prediction assigns.
        self._writes: frozenset[str] = frozenset()
        # Whether the hooks or the scaffold of an earlier run may have added operations to the scratch graph.
        self._had_additions = False
        # Local variables, such as the sums of metrics, belong to one run; the store shares all other variables between the modes.
        local_names = list_local_names(traced)
        infos = self.blueprint.variables
        self.saved = tuple(info for info in infos if info.name not in local_names)
        self.variables = store.create(self.blueprint, self.saved)
        self.local = LocalVariables(self.blueprint, [info for info in infos if info.name in local_names])
        self._variables_by_name = {**self.variables, **self.local.by_name}
        fill_tables(self.blueprint, self._variables_by_name)

    @property
    def blueprint(self) -> Blueprint:
        """Blueprint of the last call of model_fn."""
        return self._traced.blueprint

    @property
    def spec(self) -> ModelSpec:
        """The spec of the last call of model_fn."""
        return self._traced.spec

    @property
    def global_step(self) -> int:
        """The global step of the variables."""
        self.copy_to_host(["global_step"])  # A device may have a newer value.
        return int(self.variables["global_step"].numpy())

    @property
    def writes_saved_variables(self) -> bool:
        """Whether a step of evaluation or prediction assigns to variables that checkpoints contain."""
        return bool(self._writes & self.variables.keys())

    def make_session(self, *, has_additions: bool) -> HookSession:
        """Return the session of a run's hooks, on the scratch graph.

        Args:
            has_additions: whether there are hooks or a scaffold, which add to the graph. From the second run with additions on,
                model_fn is traced again.
        """
        if has_additions and self._had_additions:  # The graph has the additions of an earlier run.
            self._traced = self._traced.trace_again()
            fill_tables(self.blueprint, self._variables_by_name)
            self.fetches.switch_to(self._traced)
        self._had_additions |= has_additions
        host_writes = self.host_summary_writes if self._topology.devices else None
        return HookSession(self.blueprint, self._variables_by_name, self, host_writes)

    @property
    def host_summary_writes(self) -> tuple[tf.Operation, ...]:
        """Operations of model_fn that write tf.summary; () if the step runs them itself, as in plain TensorFlow."""
        return self._traced.summary_writes if self._topology.devices else ()

    @property
    def lost_summary_writes(self) -> list[tf.Operation]:
        """Loops, branches and functions of model_fn whose tf.summary would not be written."""
        writes = self._traced.summary_writes
        is_on_devices = bool(self._topology.devices)
        return find_lost_writes(self.blueprint.graph, writes, is_on_devices=is_on_devices) if writes else []

    @property
    def summary_switch_name(self) -> str:
        """Name of the bool placeholder that makes tf.summary write."""
        assert self._traced.records_summaries is not None  # Read only if there are summary writes, which need it.
        name: str = self._traced.records_summaries.name
        return name

    def copy_to_host(self, names: Iterable[str]) -> None:
        """Copy the devices' values of variables to the host, if they are newer."""
        names = list(names)
        self._copies.copy_to_host(name for name in names if name in self.variables)
        self.local_copies.copy_to_host(name for name in names if name in self.local.by_name)

    def mark_changed_on_host(self, names: Iterable[str]) -> None:
        """Discard the devices' values of variables that the host has written to; call `copy_to_host` before the write."""
        names = list(names)
        self._copies.mark_changed_on_host(name for name in names if name in self.variables)
        self.local_copies.mark_changed_on_host(name for name in names if name in self.local.by_name)

    def reset_local(self) -> None:
        """Set the variables that belong to one run to their initial values."""
        self.local.reset()
        self.local_copies.mark_changed_on_host(self.local.by_name)


def list_local_names(traced: TracedModel) -> set[str]:
    """Return the names of the variables that no checkpoint contains."""
    names = {info.name for info in traced.blueprint.variables if info.is_local}
    for metric in get_metric_ops(traced.spec).values():
        # The sums of a Keras metric are also local, although they are in no collection of local variables.
        names |= {get_raw_variable(variable).op.name for variable in getattr(metric, "variables", ())}
    return names

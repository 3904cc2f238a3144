"""A model_fn in one mode, for one kind of input: traced once to find its variables, then built into a step."""

import functools
from collections.abc import Callable, Iterable
from typing import Any

import tensorflow as tf

from tpudata.estimator.api.errors import ModelFnValueError
from tpudata.estimator.devices.topology import Topology
from tpudata.estimator.fetching.hook_session import HookSession
from tpudata.estimator.fetching.replay import Replay, handles_on_replica
from tpudata.estimator.graph.graph_walk import is_effect, needed_operations
from tpudata.estimator.graph.structure import batch_function
from tpudata.estimator.state.local_variables import LocalVariables
from tpudata.estimator.state.store import VariableStore
from tpudata.estimator.tracing.host_call import HostCall
from tpudata.estimator.tracing.traced_model import ModelCall, build_spec, trace_model


class Program:
    """What the modes have in common.

    Args:
        call_model: calls model_fn with (features, labels, mode).
        mode: a value of ModeKeys.
        specs: the `tf.TensorSpec` structures of (features, labels), as one replica gets them.
        topology: runs the steps.
        broadcast: whether all replicas get the same rows.
        store: holds the variables that checkpoints keep.
        seed: seed of initial values and random ops, or None.
        summaries_dir: folder of what model_fn gives to tf.summary; None: that writes nothing.
    """

    def __init__(
        self,
        call_model: ModelCall,
        mode: str,
        specs: tuple[Any, Any],
        topology: Topology,
        broadcast: bool,
        store: VariableStore,
        seed: int | None,
        summaries_dir: str | None = None,
    ) -> None:
        self._call_model = call_model
        self._summaries_dir = summaries_dir
        self.mode = mode
        self._specs = specs
        self._topology = topology
        self._strategy = topology.strategy
        self._broadcast = broadcast
        self._seed = seed
        self._values: tuple[str, ...] = ()
        self._effects: tuple[str, ...] = ()
        self._writes: frozenset[str] = frozenset()
        self._host_call: HostCall | None = None
        self._is_added_to = False
        self._trace()
        local = self._local_names()
        infos = self.blueprint.variables
        self.saved = tuple(info for info in infos if info.name not in local)
        self.variables = store.create(self.blueprint, self.saved)
        self.local = LocalVariables(self.blueprint, [info for info in infos if info.name in local], self._strategy)
        self._by_name = {**self.variables, **self.local.by_name}
        self._initialize_tables()

    def _trace(self) -> None:
        self._always_run: set[Any] | None = None
        self._found_effects: dict[str, bool] = {}
        self._traced = trace_model(self._call_model, self.mode, self._specs, self._seed, self._summaries_dir)
        self.blueprint = self._traced.blueprint
        self.spec = self.blueprint.result

    def session(self, *, is_added_to: bool) -> HookSession:
        """Return what the hooks of a run are given: a session of the scratch graph.

        Args:
            is_added_to: whether there are hooks or a scaffold. They add to the graph, and those of model_fn are made for one run:
                from the second such run on, model_fn is traced anew.
        """
        if is_added_to and self._is_added_to:
            before = self.blueprint.variables
            self._trace()
            if [info.name for info in before] != [info.name for info in self.blueprint.variables]:
                raise ModelFnValueError(
                    "model_fn made other variables than before. It must make the same variables, in the same order, at every call."
                )
            self._initialize_tables()
            self._renew()
        self._is_added_to |= is_added_to
        return HookSession(self.blueprint, self._by_name, self._strategy)

    def _renew(self) -> None:
        """Take what is built from the scratch graph from the new one."""

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

    def fetch(self, items: Iterable[Any]) -> None:
        """Let the next step also give these tensors of the scratch graph, and run these operations of it.

        Later steps give the tensors, too, so that a hook that asks now and then does not have the step built anew; what has an
        effect runs only in the steps for which it was asked. Of several replicas, rows are joined, other floats averaged; of what
        is neither, the first replica's counts.
        """
        items = list({item.name: item for item in items}.values())
        effects = [item for item in items if not isinstance(item, tf.Tensor) or self.has_effect(item)]
        names = tuple(item.name for item in effects)
        values = [item.name for item in items if item.name not in names and item.name not in self._values]
        if values or names != self._effects:
            self._values += tuple(values)
            self._effects = names
            self._renew()

    @property
    def _fetched(self) -> tuple[str, ...]:
        """The names of the tensors that the next step gives."""
        return *self._values, *(name for name in self._effects if ":" in name)

    @property
    def _asked_to_run(self) -> tuple[str, ...]:
        """The names of the operations that the next step runs, too."""
        return tuple(name for name in self._effects if ":" not in name)

    def has_effect(self, tensor: Any) -> bool:
        """Return whether a step that gives this tensor of the scratch graph changes something that it would not change without."""
        if tensor.name not in self._found_effects:
            inputs = {item.name for item in tf.nest.flatten(self.blueprint.arguments) if item is not None}
            if self._always_run is None:
                self._always_run = needed_operations(self._own_operations(), inputs)
            found = needed_operations([tensor.op], inputs) - self._always_run
            self._found_effects[tensor.name] = any(map(is_effect, found))
        return self._found_effects[tensor.name]

    def _own_operations(self) -> list[Any]:
        """Return the operations of the scratch graph that every step runs."""
        return []

    @property
    def writes(self) -> bool:
        """Whether a step of evaluation or prediction assigns to variables that checkpoints keep."""
        return bool(self._writes & self.variables.keys())

    def _joined(self, value: Any) -> Any:
        """Return one tensor for what all replicas fetched."""
        parts = self.join(value)
        if len(parts) == 1:
            return parts[0]
        if self._has_rows(parts[0].shape):
            return tf.concat(parts, axis=0)
        return tf.add_n(parts) / len(parts) if parts[0].dtype.is_floating else parts[0]

    def _has_rows(self, shape: Any) -> bool:
        specs = [item.shape for item in tf.nest.flatten(self._specs) if item is not None and item.shape.rank]
        return bool(shape.rank and specs and shape[0] == specs[0][0])

    def _fetched_tensors(self) -> list[Any]:
        return [self.blueprint.graph.get_tensor_by_name(name) for name in self._fetched]

    def _operations_to_run(self) -> list[Any]:
        return [self.blueprint.graph.get_operation_by_name(name) for name in self._asked_to_run]

    @property
    def global_step(self) -> int:
        """The step that the variables are at."""
        return int(self.variables["global_step"].numpy())

    def _build(self, features: Any, labels: Any) -> Any:
        return build_spec(self._call_model, self.mode, self._seed, features, labels)

    def _local_names(self) -> set[str]:
        names = {info.name for info in self.blueprint.variables if info.is_local}
        metrics = getattr(self.spec, "eval_metric_ops", None) or {}
        for metric in metrics.values():
            # A Keras metric's sums are state of one evaluation, too; they are in no collection that says so.
            names |= {raw_variable(variable).op.name for variable in getattr(metric, "variables", ())}
        return names

    def _replay(self, replay: Replay, arguments: tuple[Any, ...]) -> Any:
        """Run part of the scratch graph on each replica; returns per-replica values."""

        def step(*arguments: Any) -> Any:
            return replay(arguments, handles_on_replica(self._by_name))

        return self._strategy.run(step, args=arguments)

    def _batch_function(self, function: Callable[..., Any], specs: tuple[Any, ...]) -> Callable[..., Any]:
        if self._topology.is_sharded:  # One shape for all batches, and values of several replicas.
            compiled: Callable[..., Any] = tf.function(function, autograph=False)
            return compiled
        return batch_function(function, specs)

    def _make_host_call(self) -> HostCall | None:
        host_call = getattr(self.spec, "host_call", None)
        if host_call is None or not self._topology.peers.is_chief:
            return None
        replicas = 1 if self._broadcast else self._topology.local_replicas
        with self.blueprint.graph.as_default():
            tensors = self._host_tensors(self.spec)
        specs = tf.nest.map_structure(
            lambda item: tf.TensorSpec(joined_shape(item.shape, replicas), item.dtype), tensors
        )
        return HostCall(host_call[0], specs, self._seed)

    def _host_tensors(self, spec: Any) -> Any:
        """Return the tensors of host_call, in the graph that the spec belongs to."""
        host_call = getattr(spec, "host_call", None)
        return () if host_call is None else self._to_be_joined(host_call[1], "host_call")

    def _call_host(self, tensors: Any, value: Any) -> Any:
        """Run host_call, if there is one, on the tensors of all replicas; returns `value`, which waits for it."""
        if self._host_call is None:
            return value
        joined = tf.nest.map_structure(lambda item: concatenated(self.join(item)), tensors)
        return self._host_call.update(joined, value)

    def _to_be_joined(self, tensors: Any, field: str) -> Any:
        """Return tensors for a function of the host, which gets those of all replicas.

        Raises:
            ModelFnValueError: on several replicas, a scalar.
        """
        converted = tf.nest.map_structure(tf.convert_to_tensor, tensors)
        for tensor in tf.nest.flatten(converted) if self._topology.is_sharded else ():
            if not tensor.shape.rank:
                raise ModelFnValueError(
                    f"TPUEstimatorSpec({field}=...): {tensor.name!r} is a scalar, and the tensors of all replicas are "
                    "joined along their first axis: reshape it to [1], or give a value for each row."
                )
        return converted

    def join(self, value: Any) -> list[Any]:
        """Return the tensors of one value of all replicas, in their order; one where all have the same rows."""
        parts = self._strategy.experimental_local_results(value)
        return list(parts[:1] if self._broadcast else parts)


def raw_variable(variable: Any) -> Any:
    """Return the tf.Variable inside a Keras 3 variable, or a tf.Variable itself."""
    return getattr(variable, "value", variable) if not isinstance(variable, tf.Variable) else variable


class PredictProgram(Program):
    """Predictions of one batch.

    `run(features)` returns the predictions, a per-replica value where there are several replicas, and the tensors to fetch.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._renew()

    def _renew(self) -> None:
        with self.blueprint.graph.as_default():
            predictions = tf.nest.map_structure(tf.convert_to_tensor, self.spec.predictions)
        replay = Replay(self.blueprint, (predictions, self._fetched_tensors()), self._operations_to_run())
        self._writes = replay.writes
        self._run_batch = self._batch_function(functools.partial(self._run, replay), self._specs[:1])

    def _run(self, replay: Replay, features: Any) -> Any:
        predictions, fetched = self._replay(replay, (features,))
        return predictions, [self._joined(item) for item in fetched]

    def run(self, features: Any) -> tuple[Any, dict[str, Any]]:
        """Return the predictions for a batch, and the tensors to fetch by name."""
        predictions, fetched = self._run_batch(features)
        return predictions, dict(zip(self._fetched, fetched, strict=True))


def concatenated(parts: list[Any]) -> Any:
    """Return the tensors of all replicas, joined along their first axis."""
    return parts[0] if len(parts) == 1 else tf.concat(parts, axis=0)


def joined_shape(shape: Any, replicas: int) -> Any:
    """Return the shape of what `concatenated` gives for tensors of `shape`."""
    if not shape.rank:
        return shape
    rows = None if shape[0] is None else shape[0] * replicas
    return tf.TensorShape([rows, *shape[1:]])

"""A model_fn in one mode, for one kind of input: traced once to find its variables, then built into a step."""

from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from tpudata.estimator._errors import ModelFnTypeError, ModelFnValueError
from tpudata.estimator._keras_state import fresh_keras_state
from tpudata.estimator._spec import EstimatorSpec, TPUEstimatorSpec
from tpudata.estimator._store import VariableStore
from tpudata.estimator._structure import batch_function, fetch_only
from tpudata.estimator._variables import VariableInfo, discover, reuse

ModelCall = Callable[[Any, Any, str], Any]


class Program:
    """What the modes have in common.

    Args:
        call_model: calls model_fn with (features, labels, mode).
        mode: a value of ModeKeys.
        specs: the `tf.TensorSpec` structures of (features, labels).
        strategy: the `tf.distribute.Strategy` that runs the steps.
        store: holds the variables that checkpoints keep.
        seed: seed of initial values and random ops, or None.
    """

    def __init__(
        self,
        call_model: ModelCall,
        mode: str,
        specs: tuple[Any, Any],
        strategy: Any,
        store: VariableStore,
        seed: int | None,
    ) -> None:
        self._call_model = call_model
        self._mode = mode
        self._specs = specs
        self._strategy = strategy
        self._store = store
        self._seed = seed
        self.blueprint = discover(self._build, specs, seed)
        self.spec = self.blueprint.result
        local = self._local_names()
        infos = self.blueprint.variables
        self.saved = tuple(info for info in infos if info.name not in local)
        self.variables = store.create(self.blueprint, self.saved)
        locals_ = [info for info in infos if info.name in local]
        self.local = LocalVariables(locals_, self.blueprint.initial_values(locals_))
        self._by_key = {info.key: (info, self.variables[info.name]) for info in self.saved} | self.local.by_key

    @property
    def global_step(self) -> int:
        """The step that the variables are at."""
        return int(self.variables["global_step"].numpy())

    def trace(self, features: Any, labels: Any) -> Any:
        """Call model_fn in the graph that is being built, on the real variables; returns its spec."""
        with reuse(self._by_key, self._seed):
            return self._build(features, labels)

    def _build(self, features: Any, labels: Any) -> Any:
        tf.compat.v1.train.get_or_create_global_step()
        with fresh_keras_state(self._seed):
            spec = self._call_model(features, labels, self._mode)
        if not isinstance(spec, TPUEstimatorSpec | EstimatorSpec):
            raise ModelFnTypeError(
                f"model_fn must return a TPUEstimatorSpec or an EstimatorSpec, got {type(spec).__name__}."
            )
        if spec.mode != self._mode:
            raise ModelFnValueError(
                f"model_fn was called in mode {self._mode!r} and returned a spec of mode {spec.mode!r}."
            )
        return spec

    def _local_names(self) -> set[str]:
        names = {info.name for info in self.blueprint.variables if info.is_local}
        metrics = getattr(self.spec, "eval_metric_ops", None) or {}
        for metric in metrics.values():
            # A Keras metric's sums are state of one evaluation, too; they are in no collection that says so.
            names |= {raw_variable(variable).op.name for variable in getattr(metric, "variables", ())}
        return names


def raw_variable(variable: Any) -> Any:
    """Return the tf.Variable inside a Keras 3 variable, or a tf.Variable itself."""
    return getattr(variable, "value", variable) if not isinstance(variable, tf.Variable) else variable


class LocalVariables:
    """Variables that belong to one run and are set back before it: the sums of metrics.

    Args:
        infos: the variables.
        initial: their first values by name.
    """

    def __init__(self, infos: list[VariableInfo], initial: Mapping[str, Any]) -> None:
        self._initial = dict(initial)
        self.by_key = {
            info.key: (info, tf.Variable(initial[info.name], trainable=False, name=info.name)) for info in infos
        }

    def reset(self) -> None:
        """Give every variable its first value again."""
        for info, variable in self.by_key.values():
            variable.assign(self._initial[info.name])


class TrainProgram(Program):
    """Training steps, many in one call."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.checked = [
            info.name for info in self.saved if info.trainable and self.variables[info.name].dtype.is_floating
        ]
        self.run = tf.function(self._run, autograph=False)

    def _run(self, iterator: Any, limit: Any) -> tuple[Any, Any, Any, Any]:
        """Run up to `limit` steps; stop before the end of the data and after a loss that is not finite.

        The data's end is asked for, not run into: an error in the middle of the loop would leave the last step
        half done.

        Args:
            iterator: over (features, labels) or features.
            limit: int32 scalar.

        Returns:
            The number of steps done (int32), whether there was data for all of them (bool), the last loss (float32),
            and a bool [len(checked)] that tells of each trainable variable whether all its values are finite.
        """

        def step(features: Any, labels: Any) -> Any:
            spec = self.trace(features, labels)
            # The loss waits for the update, and the next step's test for the loss: steps never overlap.
            with tf.control_dependencies([tf.group(spec.train_op)]):
                return tf.reshape(tf.cast(spec.loss, tf.float32), [])

        def distributed_step(element: Any) -> Any:
            loss = self._strategy.run(step, args=self._split(element))
            return self._strategy.reduce(tf.distribute.ReduceOp.MEAN, loss, axis=None)

        def wanted(done: Any, has_data: Any, loss: Any) -> Any:
            return (done < limit) & has_data & tf.math.is_finite(loss)

        def body(done: Any, has_data: Any, loss: Any) -> tuple[Any, Any, Any]:
            element = iterator.get_next_as_optional()
            has_data = element.has_value()
            loss = tf.cond(has_data, lambda: distributed_step(element.get_value()), lambda: loss)
            return done + tf.cast(has_data, tf.int32), has_data, loss

        done, has_data, loss = tf.while_loop(
            wanted, body, (tf.constant(0), tf.constant(True), tf.constant(0.0)), maximum_iterations=None
        )
        finite = [tf.reduce_all(tf.math.is_finite(self.variables[name])) for name in self.checked]
        return done, has_data, loss, tf.stack(finite) if finite else tf.ones([0], tf.bool)

    def _split(self, element: Any) -> tuple[Any, Any]:
        return element if self._specs[1] is not None else (element, None)


class PredictProgram(Program):
    """Predictions of one batch."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.run = batch_function(self._run, self._specs[:1])

    def _run(self, features: Any) -> Any:
        def step(features: Any) -> Any:
            return fetch_only(lambda batch: self.trace(batch, None).predictions, features)

        return self._strategy.run(step, args=(features,))

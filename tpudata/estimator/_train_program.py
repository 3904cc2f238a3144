"""Training: a model_fn built into a loop of steps.

On one replica a step is a copy of what the scratch graph needs for loss, train_op and all that is fetched: model_fn is called once,
and nothing runs that a session would not run. Several replicas trace model_fn again, in a tf.function, because they exchange values
within the step; there, as in any tf.function, every operation with an effect runs.
"""

import contextlib
import functools
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from tpudata.estimator._errors import ModelFnValueError
from tpudata.estimator._fetch_plan import Counterparts
from tpudata.estimator._iteration import Iteration, iterator_of
from tpudata.estimator._keras_effects import keras_effects, writes
from tpudata.estimator._keras_state import fresh_keras_state
from tpudata.estimator._optimizer import require_cross_shard
from tpudata.estimator._program import Program, joined_shape
from tpudata.estimator._random_draws import drawn_by_step
from tpudata.estimator._random_graph import draw_by_step
from tpudata.estimator._replay import Replay, handles_on_replica
from tpudata.estimator._variables import Requests, VariableInfo, reuse

# Of operations that are not the model's, so that they take none of its names.
_SCOPE = "tpudata_summary"
_CREATE_WRITER = "CreateSummaryFileWriter"
_WRITER_UPKEEP = (_CREATE_WRITER, "FlushSummaryWriter")


class TrainProgram(Program):
    """Training steps, many in one call."""

    def __init__(self, *args: Any, summaries_dir: str, **kwargs: Any) -> None:
        self._summaries_dir = summaries_dir
        self._summary_writer: Any = None
        self._built_for: tuple[str, ...] | None = None
        super().__init__(*args, **kwargs)
        if self._topology.is_sharded:
            require_cross_shard(self.blueprint)
        if not self._is_copied:
            _require_plain_first_values(self.blueprint.variables)
            self._require_fetched_effects()
        self._by_key = {info.key: (info, self.variables[info.name]) for info in self.saved} | self.local.by_key
        self.checked = [
            info.name for info in self.saved if info.trainable and self.variables[info.name].dtype.is_floating
        ]
        if self.uses_tf_summary and not self._is_copied:
            self._summary_writer = tf.summary.create_file_writer(summaries_dir)
        self._flush: Replay | None = None
        if self.uses_tf_summary and self._is_copied:
            self._make_writer()
        self._host_call = self._make_host_call()
        self._renew()

    def _renew(self) -> None:
        # A step that was built for these tensors stays: they have the same names in every trace.
        if self._built_for != self._fetched:
            self._built_for = self._fetched
            self._loops: dict[Any, Callable[..., Any]] = {}
        self._newest: tuple[Any, Callable[..., Any]] | None = None

    @property
    def _is_copied(self) -> bool:
        """Whether a step is copied from the scratch graph, rather than traced anew."""
        return self._topology.num_replicas == 1

    @property
    def keeps_v1_summaries(self) -> bool:
        """Whether tf.compat.v1.summary makes summaries of its own; beside a writer of tf.summary, a tf.function has it use that."""
        return self._is_copied or not self.uses_tf_summary

    def _build_scratch(self, features: Any, labels: Any) -> Any:
        # tf.summary does nothing without a writer. This one writes nothing in the scratch graph itself.
        with tf.name_scope(_SCOPE):
            writer = tf.summary.create_file_writer(self._summaries_dir)
            self._step = tf.compat.v1.placeholder(tf.int64, [], name="step")
            self._record = tf.compat.v1.placeholder(tf.bool, [], name="record")
            step = self._step + 1
        operations = tf.compat.v1.get_default_graph().get_operations()
        handle = next(item for item in operations if item.type == "SummaryWriter")
        with writer.as_default(step=step), tf.summary.record_if(self._record):
            spec = self._build(features, labels)
        takers = handle.outputs[0].consumers()
        self._writes = [item for item in takers if item.type not in _WRITER_UPKEEP]
        self.uses_tf_summary = bool(self._writes)
        return spec

    def _make_writer(self) -> None:
        """Open the event file for what model_fn gives to tf.summary, and find out how it is flushed."""
        graph = self.blueprint.graph
        (handle,) = {
            tensor.name for item in self._writes for tensor in item.inputs if tensor.op.type == "SummaryWriter"
        }
        writer = graph.get_tensor_by_name(handle)
        create = [item for item in writer.consumers() if item.type == _CREATE_WRITER]
        with graph.as_default():
            flush = tf.raw_ops.FlushSummaryWriter(writer=writer)
        self._on_host(Replay(self.blueprint, (), create))
        self._flush = Replay(self.blueprint, (), [flush])

    def _on_host(self, replay: Replay) -> None:
        with tf.device("CPU:0"):
            tf.function(lambda: replay((), handles_on_replica(self._by_name)), autograph=False)()

    def _loop(self, iteration: Iteration) -> Callable[..., Any]:
        """Return the loop over such an iterator; it is traced at the first call."""
        # To compare specs at each loop would take its time.
        if self._newest is None or self._newest[0] is not iteration:
            spec = iteration.spec
            key = spec, self._asked_to_run
            if key not in self._loops:
                arguments = [*iteration.tensors, tf.constant(0), tf.constant(False)]
                signature = [tf.TensorSpec(item.shape, item.dtype) for item in arguments]
                run = functools.partial(self._run, self._fetched, spec)
                compiled = tf.function(run, input_signature=signature, autograph=False)
                self._loops[key] = compiled.get_concrete_function()
            self._newest = iteration, self._loops[key]
        return self._newest[1]

    def run(self, iteration: Iteration, limit: int, record: bool = False) -> tuple[Any, ...]:
        """Run up to `limit` steps; stop before the end of the data and after a loss that is not finite.

        The data's end is asked for, not run into: an error in the middle of the loop would leave the last step
        half done.

        Args:
            iteration: over (features, labels) or features.
            limit: how many.
            record: whether the last of them writes what model_fn gives to `tf.summary`.

        Returns:
            The global step (int64), the number of steps done (int32), whether there was data for all of them (bool), the last
            loss (float32), a bool [len(checked)] that tells of each trainable variable whether all its values are finite, and by
            name the tensors to fetch, of the last step.
        """
        loop = self._loop(iteration)
        *results, fetched = loop(*iteration.tensors, tf.constant(limit), tf.constant(record))
        return *results, dict(zip(self._fetched, fetched, strict=True))

    def _run(self, names: tuple[str, ...], spec: Any, *arguments: Any) -> tuple[Any, ...]:
        *parts, limit, record = arguments
        iterator = iterator_of(spec, parts)
        step = self._copied_step() if self._is_copied else self._traced_step(names)

        def distributed_step(element: Any, record_now: Any) -> Any:
            loss, fetched, host = step(record_now, *self._split(element))
            loss = self._strategy.reduce(tf.distribute.ReduceOp.MEAN, loss, axis=None)
            return self._call_host(host, loss), *map(self._joined, fetched)

        def wanted(done: Any, has_data: Any, loss: Any, *fetched: Any) -> Any:
            del fetched
            return (done < limit) & has_data & tf.math.is_finite(loss)

        def body(done: Any, has_data: Any, *last: Any) -> tuple[Any, ...]:
            element = iterator.get_next_as_optional()
            has_data = element.has_value()
            record_now = record & tf.equal(done + 1, limit)
            last = tf.cond(has_data, lambda: distributed_step(element.get_value(), record_now), lambda: last)
            return done + tf.cast(has_data, tf.int32), has_data, *last

        tensors = [self.blueprint.graph.get_tensor_by_name(name) for name in names]
        specs = [self._joined_spec(tf.TensorSpec(item.shape, item.dtype)) for item in tensors]
        scalar = tf.TensorShape([])
        done, has_data, loss, *fetched = tf.while_loop(
            wanted,
            body,
            (tf.constant(0), tf.constant(True), tf.constant(0.0), *map(_empty, specs)),
            shape_invariants=(scalar, scalar, scalar, *(spec.shape for spec in specs)),
        )
        finite = [tf.reduce_all(tf.math.is_finite(self.variables[name])) for name in self.checked]
        all_finite = tf.stack(finite) if finite else tf.ones([0], tf.bool)
        return self.variables["global_step"].read_value(), done, has_data, loss, all_finite, fetched

    def _copied_step(self) -> Callable[..., Any]:
        """Return a step that computes what the scratch graph needs for the spec, on one replica."""
        with self.blueprint.graph.as_default():
            loss = tf.reshape(tf.cast(self.spec.loss, tf.float32), [])
            train_op = tf.group(self.spec.train_op)
            host = self._host_tensors(self.spec)
        # Of a condition in a graph, only what its results need is run: they are asked for, too.
        kinds = (tf.resource, tf.variant)
        written = [tensor for item in self._writes for tensor in item.outputs if tensor.dtype not in kinds]
        replay = Replay(
            self.blueprint,
            (loss, self._fetched_tensors(), host, written),
            [*keras_effects(self.blueprint), *self._writes, train_op, *self._operations_to_run()],
            [self._step, self._record],
            rewrite=functools.partial(draw_by_step, step=self._step.op.name),
        )

        def run(record_now: Any, features: Any, labels: Any) -> Any:
            self._set_shapes((features, labels))
            values = [tf.cast(self.variables["global_step"].read_value(), tf.int64), record_now]
            loss, fetched, host, written = replay((features, labels), handles_on_replica(self._by_name), values)
            with tf.control_dependencies(written):
                return tf.identity(loss), fetched, host

        def step(record_now: Any, features: Any, labels: Any) -> Any:
            return self._strategy.run(run, args=(record_now, features, labels))

        return step

    def _require_fetched_effects(self) -> None:
        """Check that all changes of variables are part of train_op: on several replicas all run, on one those that it waits for.

        Raises:
            ModelFnValueError: one is not.
        """
        with self.blueprint.graph.as_default():
            roots = [tf.group(self.spec.train_op), tf.convert_to_tensor(self.spec.loss)]
        runs = Replay(self.blueprint, roots[1], [roots[0]]).operations | {*keras_effects(self.blueprint)}
        for operation in writes(self.blueprint):
            if operation not in runs:
                raise ModelFnValueError(
                    f"model_fn changes a variable by {operation.name!r}, which train_op does not wait for: on one device it "
                    "does not run. Make train_op under tf.control_dependencies of it, as of tf.compat.v1.GraphKeys.UPDATE_OPS, "
                    "or leave it out."
                )

    def _traced_step(self, names: tuple[str, ...]) -> Callable[..., Any]:
        """Return a step that calls model_fn again, once for each replica."""
        requests = Requests()
        counterparts = Counterparts(self.blueprint, names)

        def run(record_now: Any, features: Any, labels: Any) -> Any:
            self._set_shapes((features, labels))
            with reuse(self._by_key, requests, self._seed) as trace, self._summaries(record_now):
                spec = self._build(features, labels)
            fetched = counterparts.find(trace.operations(), (features, labels))
            host = self._host_tensors(spec)
            # The loss waits for the update, and the next step's test for the loss: steps never overlap.
            with tf.control_dependencies([tf.group(spec.train_op)]):
                loss = tf.reshape(tf.cast(spec.loss, tf.float32), [])
            return loss, fetched, host

        def step(record_now: Any, features: Any, labels: Any) -> Any:
            # The replicas take turns, so that none of them can tell what Keras' state was before all of them.
            with fresh_keras_state(self._seed), drawn_by_step(self.variables["global_step"].read_value):
                return self._strategy.run(run, args=(record_now, features, labels))

        return step

    @contextlib.contextmanager
    def _summaries(self, record: Any) -> Iterator[None]:
        """Let tf.summary write while model_fn is traced, or not: those of v1 are written by the host."""
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Cannot activate TF2 compatibility support for TF1 summary ops")
            if self._summary_writer is None:
                yield
                return
            with tf.name_scope(_SCOPE):
                step = tf.cast(tf.compat.v1.train.get_or_create_global_step(), tf.int64) + 1
            with self._summary_writer.as_default(step=step), tf.summary.record_if(record):
                yield

    def flush(self) -> None:
        """Make what model_fn and host_call wrote visible to readers."""
        if self._summary_writer is not None:
            self._summary_writer.flush()
        if self._flush is not None:
            self._on_host(self._flush)
        if self._host_call is not None:
            self._host_call.flush()

    def _joined_spec(self, spec: Any) -> Any:
        if not self._topology.is_sharded or self._broadcast or not self._has_rows(spec.shape):
            return spec
        return tf.TensorSpec(joined_shape(spec.shape, self._topology.num_replicas), spec.dtype)

    def _set_shapes(self, element: tuple[Any, Any]) -> None:
        # A distributed iterator over data that end forgets the number of rows, in case that a replica gets fewer.
        for tensor, spec in zip(tf.nest.flatten(element), tf.nest.flatten(self._specs), strict=True):
            if spec is not None:
                tensor.set_shape(spec.shape)

    def _split(self, element: Any) -> tuple[Any, Any]:
        return element if self._specs[1] is not None else (element, None)


def _empty(spec: Any) -> Any:
    return tf.zeros([] if spec.shape.rank is None else [size or 0 for size in spec.shape], spec.dtype)


def _require_plain_first_values(variables: Sequence[VariableInfo]) -> None:
    """Check that model_fn leaves first values alone: traced again for the step, it would assign them at every step.

    Raises:
        ModelFnValueError: `tf.train.init_from_checkpoint` or its like was called in model_fn.
    """
    for info in variables:
        if info.first_value_changed:
            raise ModelFnValueError(
                f"model_fn gives the variable {info.name!r} another first value, as tf.train.init_from_checkpoint does, and "
                "trains on several replicas. Call it in scaffold_fn: TPUEstimatorSpec(scaffold_fn=...), as a TPU has always "
                "required."
            )

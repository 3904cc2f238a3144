"""Training: a model_fn built into a loop of steps."""

import contextlib
import functools
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from tpudata.estimator._fetch_plan import Counterparts
from tpudata.estimator._iteration import Iteration, iterator_of
from tpudata.estimator._keras_state import fresh_keras_state
from tpudata.estimator._optimizer import require_cross_shard
from tpudata.estimator._program import Program, joined_shape
from tpudata.estimator._random_draws import drawn_by_step
from tpudata.estimator._variables import Requests, reuse

# Of operations that are not the model's, so that they take none of its names.
_SCOPE = "tpudata_summary"
_WRITER_UPKEEP = ("CreateSummaryFileWriter", "FlushSummaryWriter")


class TrainProgram(Program):
    """Training steps, many in one call."""

    def __init__(self, *args: Any, summaries_dir: str, **kwargs: Any) -> None:
        self._summaries_dir = summaries_dir
        self._summary_writer: Any = None
        self._built_for: tuple[str, ...] | None = None
        super().__init__(*args, **kwargs)
        if self._topology.is_sharded:
            require_cross_shard(self.blueprint)
        self._by_key = {info.key: (info, self.variables[info.name]) for info in self.saved} | self.local.by_key
        self.checked = [
            info.name for info in self.saved if info.trainable and self.variables[info.name].dtype.is_floating
        ]
        if self.uses_tf_summary:
            self._summary_writer = tf.summary.create_file_writer(summaries_dir)
        self._host_call = self._make_host_call()
        self._renew()

    def _renew(self) -> None:
        # A step that was built for these tensors stays: they have the same names in every trace.
        if self._built_for != self._fetched:
            self._built_for = self._fetched
            self._loops: dict[Any, Callable[..., Any]] = {}
            self._newest: tuple[Any, Callable[..., Any]] | None = None

    def _build_scratch(self, features: Any, labels: Any) -> Any:
        # tf.summary does nothing where no writer is: this one tells whether model_fn uses it. It is never opened.
        with tf.name_scope(_SCOPE):
            writer = tf.summary.create_file_writer(self._summaries_dir)
            step = tf.constant(0, tf.int64)
        operations = tf.compat.v1.get_default_graph().get_operations()
        handle = next(item for item in operations if item.type == "SummaryWriter")
        with writer.as_default(step=step):
            spec = self._build(features, labels)
        takers = handle.outputs[0].consumers()
        self.uses_tf_summary = any(item.type not in _WRITER_UPKEEP for item in takers)
        return spec

    def _loop(self, iteration: Iteration) -> Callable[..., Any]:
        """Return the loop over such an iterator; it is traced at the first call."""
        # To compare specs at each loop would take its time.
        if self._newest is None or self._newest[0] is not iteration:
            spec = iteration.spec
            if spec not in self._loops:
                arguments = [*iteration.tensors, tf.constant(0), tf.constant(False)]
                signature = [tf.TensorSpec(item.shape, item.dtype) for item in arguments]
                run = functools.partial(self._run, self._fetched, spec)
                compiled = tf.function(run, input_signature=signature, autograph=False)
                self._loops[spec] = compiled.get_concrete_function()
            self._newest = iteration, self._loops[spec]
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
        requests = Requests()
        counterparts = Counterparts(self.blueprint, names)

        def step(record_now: Any, features: Any, labels: Any) -> Any:
            self._set_shapes((features, labels))
            with reuse(self._by_key, requests, self._seed) as trace, self._summaries(record_now):
                spec = self._build(features, labels)
            fetched = counterparts.find(trace.operations(), (features, labels))
            host = self._host_tensors(spec)
            # The loss waits for the update, and the next step's test for the loss: steps never overlap.
            with tf.control_dependencies([tf.group(spec.train_op)]):
                loss = tf.reshape(tf.cast(spec.loss, tf.float32), [])
            return loss, fetched, host

        def distributed_step(element: Any, record_now: Any) -> Any:
            # The replicas take turns, so that none of them can tell what Keras' state was before all of them.
            with fresh_keras_state(self._seed), drawn_by_step(self.variables["global_step"].read_value):
                loss, fetched, host = self._strategy.run(step, args=(record_now, *self._split(element)))
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

        specs = [self._joined_spec(counterparts.spec(i)) for i in range(len(names))]
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

"""Training steps of plain TensorFlow in one `tf.function`: a loop over the data, or a single step of it."""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import tensorflow as tf

from tpudata.estimator.feeding.iteration import Iteration, iterator_of
from tpudata.estimator.steps.replica_step import ReplicaStep
from tpudata.estimator.tracing.host_call import HostCall, run_host_call

# Function of a batch and of whether tf.summary writes, which returns the loss and the fetched tensors.
_Step: TypeAlias = Callable[[Any, Any], tuple[Any, ...]]


class LoopResult(NamedTuple):
    """Result of a loop of steps.

    Attributes:
        global_step: the global step that was reached.
        has_data: whether there was data for all requested steps.
        steps: int64 [steps], the global step after each of the steps that were done.
        losses: float32 [steps], the losses of the steps that were done.
        finite: bool [checked], whether all values of each checked variable are finite; empty after a single step.
        fetched: values (tensors or NumPy) fetched from the last step, by name.
    """

    global_step: Any
    has_data: Any
    steps: Any
    losses: Any
    finite: Any
    fetched: Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class TrainLoop:
    """Builder of the function that runs steps, and stops before the end of the data or after a loss of NaN.

    The function tests for the end of the data, as an error in the middle of the loop would leave the last step half done.

    Attributes:
        step: the step.
        host_call: host_call to run at each step, or None.
        variables: variables of the model by name, including `global_step`.
        checked: names of the variables whose values must be finite.
        has_labels: whether elements are pairs of features and labels.
        counts_all: whether every step adds 1 to the global step; otherwise a loop notes the global step after each step.
    """

    step: ReplicaStep
    host_call: HostCall | None
    variables: Mapping[str, Any]
    checked: Sequence[str]
    has_labels: bool
    counts_all: bool

    def compile(
        self, iteration: Iteration, fetched: Sequence[Any], placeholders: Sequence[Any], *, is_step: bool
    ) -> Callable[..., tuple[Any, ...]]:
        """Return the function for iterators like that of `iteration`.

        Args:
            iteration: iteration over (features, labels), or features.
            fetched: tensors of the scratch graph that the last step returns.
            placeholders: placeholders of model_fn for which the function takes values.
            is_step: whether the function runs a single step instead of a loop.

        Returns:
            A function of the iterator's tensors, the largest number of steps (scalar int32), whether tf.summary writes in the last
            step (scalar bool), and the placeholders' values. It returns the first five fields of a LoopResult and a list of the
            fetched tensors.
        """
        specs = [tf.TensorSpec(item.shape, item.dtype) for item in fetched]

        def run(*arguments: Any) -> tuple[Any, ...]:
            first = len(arguments) - len(placeholders)
            *parts, limit, record = arguments[:first]
            step = functools.partial(self._global_step, arguments[first:])
            iterator = iterator_of(iteration.spec, parts)
            if is_step and iteration.is_endless:
                return self._unconditional(step, iterator, record)
            if is_step:
                return self._single(step, iterator, record, specs)
            return self._loop(step, iterator, limit, record, specs)

        arguments = [*iteration.tensors, tf.constant(0), tf.constant(False), *placeholders]
        signature = [tf.TensorSpec(item.shape, item.dtype) for item in arguments]
        compiled: Callable[..., Any] = tf.function(run, input_signature=signature, autograph=False)
        return compiled.get_concrete_function()  # type: ignore[attr-defined, no-any-return]  # TensorFlow is untyped

    def _unconditional(self, step: _Step, iterator: Any, record: Any) -> tuple[Any, ...]:
        loss, *fetched = step(iterator.get_next(), record)
        steps = tf.reshape(self._read_step(), [1])
        return *self._after(tf.constant(True), steps, tf.reshape(loss, [1]), checked=()), fetched

    def _single(self, step: _Step, iterator: Any, record: Any, specs: Sequence[tf.TensorSpec]) -> tuple[Any, ...]:
        element = iterator.get_next_as_optional()
        has_data = element.has_value()
        loss, *fetched = tf.cond(
            has_data,
            lambda: step(element.get_value(), record),
            lambda: (tf.constant(0.0), *map(_empty, specs)),
        )
        done = tf.cast(has_data, tf.int32)
        steps = tf.reshape(self._read_step(), [1])[:done]
        return *self._after(has_data, steps, tf.reshape(loss, [1])[:done], checked=()), fetched

    def _loop(
        self, step: _Step, iterator: Any, limit: Any, record: Any, specs: Sequence[tf.TensorSpec]
    ) -> tuple[Any, ...]:
        def wanted(done: Any, has_data: Any, lists: Any, loss: Any, *fetched: Any) -> Any:
            del lists, fetched
            return (done < limit) & has_data & ~tf.math.is_nan(loss)

        def next_step(element: Any, record_now: Any, lists: Any) -> tuple[Any, ...]:
            loss, *fetched = step(element, record_now)
            values = (loss,) if self.counts_all else (loss, self._read_step())
            return tuple(map(_pushed, lists, values)), loss, *fetched

        def body(done: Any, has_data: Any, lists: Any, *last: Any) -> tuple[Any, ...]:
            element = iterator.get_next_as_optional()
            has_data = element.has_value()
            record_now = record & tf.equal(done + 1, limit)
            results = tf.cond(
                has_data, lambda: next_step(element.get_value(), record_now, lists), lambda: (lists, *last)
            )
            return done + tf.cast(has_data, tf.int32), has_data, *results

        scalar = tf.TensorShape([])
        no_shape = tf.constant([], tf.int32)
        # A tensor list grows in place, at 1.3 us a step.
        dtypes = (tf.float32,) if self.counts_all else (tf.float32, tf.int64)
        lists = tuple(
            tf.raw_ops.EmptyTensorList(element_shape=no_shape, max_num_elements=-1, element_dtype=dtype)
            for dtype in dtypes
        )
        _, has_data, lists, _, *fetched = tf.while_loop(
            wanted,
            body,
            (tf.constant(0), tf.constant(True), lists, tf.constant(0.0), *map(_empty, specs)),
            shape_invariants=(scalar, scalar, (scalar,) * len(lists), scalar, *(spec.shape for spec in specs)),
        )
        losses, *others = (
            tf.raw_ops.TensorListStack(input_handle=item, element_shape=no_shape, element_dtype=dtype)
            for item, dtype in zip(lists, dtypes, strict=True)
        )
        count = tf.size(losses, tf.int64)
        steps = others[0] if others else self._read_step() - count + tf.range(1, count + 1)
        return *self._after(has_data, steps, losses, self.checked), fetched

    def _global_step(self, feeds: Sequence[Any], element: Any, record: Any) -> tuple[Any, ...]:
        """Run a step; return the loss and the fetched tensors."""
        features, labels = element if self.has_labels else (element, None)
        loss, fetched, host = self.step((tf.constant(0), record), features, labels, self.variables, feeds)
        return run_host_call(self.host_call, host, loss), *fetched

    def _read_step(self) -> Any:
        return tf.cast(self.variables["global_step"].read_value(), tf.int64)

    def _after(self, has_data: Any, steps: Any, losses: Any, checked: Sequence[str]) -> tuple[Any, ...]:
        finite = are_finite([self.variables[name] for name in checked])
        return self._read_step(), has_data, steps, losses, finite


def are_finite(variables: Sequence[Any]) -> Any:
    """Return whether all values of each variable are finite, bool [variables]."""
    finite = [tf.reduce_all(tf.math.is_finite(variable)) for variable in variables]
    return tf.stack(finite) if finite else tf.ones([0], tf.bool)


def _pushed(items: Any, item: Any) -> Any:
    return tf.raw_ops.TensorListPushBack(input_handle=items, tensor=item)


def _empty(spec: Any) -> Any:
    return tf.zeros([] if spec.shape.rank is None else [size or 0 for size in spec.shape], spec.dtype)

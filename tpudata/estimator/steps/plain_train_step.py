"""Training on one device, with plain TensorFlow: a loop over the data in one `tf.function`, or a single step of it.

The loop tests for the end of the data, since an error in the middle of the loop would leave the last step half done.
"""

import functools
from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from tpudata.devices.processes.topology import Topology
from tpudata.estimator.feeding.iteration import Iteration, StepIteration, pack_iterator
from tpudata.estimator.state.store import VariableStore
from tpudata.estimator.steps.replica_step import ReplicaStep
from tpudata.estimator.steps.train_step import LoopRequest, LoopResult, TrainStep
from tpudata.estimator.tracing.traced_model import TracedModel
from tpudata.tensor_types import Tensors

# The cache of constants is cleared beyond this number of them: most loops have one of a few sizes.
_MAX_CONSTANTS = 16
# Function of a batch and of whether tf.summary writes, which returns the loss and the fetched tensors.
_Step: TypeAlias = Callable[[Tensors, tf.Tensor], tuple[tf.Tensor, ...]]
# Compiled loop or single step, as `_compile` describes it.
_Loop: TypeAlias = Callable[..., tuple[Tensors, ...]]


class PlainTrainStep(TrainStep):
    """A training step in a `tf.function`, with the operations that the scratch graph has.

    Args:
        traced: the model.
        topology: devices that run the steps.
        store: store of the variables that checkpoints contain.
        is_broadcast: whether all replicas get the same rows.
    """

    def __init__(self, traced: TracedModel, topology: Topology, store: VariableStore, *, is_broadcast: bool) -> None:
        super().__init__(traced, topology, store, is_broadcast=is_broadcast)
        # Tensors of numbers that loops take, by type and number.
        self._constants: dict[tuple[type, int], tf.Tensor] = {}
        # Function that tests the checked variables; None until it is first needed.
        self._are_finite: Callable[[], tf.Tensor] | None = None
        # Key of the last loop's request, and the loop.
        self._last_loop: tuple[object, _Loop] | None = None

    def run(self, iteration: StepIteration, request: LoopRequest) -> LoopResult:
        """Run steps, as described in TrainStep; a single one without a while_loop, in 0.29 ms instead of 0.31."""
        assert isinstance(iteration, Iteration)  # The feed of one device.
        max_loop_steps, records_summaries, is_single_step, feeds = request
        fed_names = tuple(sorted(feeds))
        loop = self._find_compiled(iteration, is_single_step, fed_names)
        feed_values = [tf.constant(feeds[name]) for name in fed_names]
        try:
            global_step, has_data, global_steps, losses, finite, fetched = loop(
                *iteration.tensors,
                self._make_constant(max_loop_steps),
                self._make_constant(records_summaries),
                *feed_values,
            )
        except tf.errors.OutOfRangeError:
            # Only single steps on endless data do not test for its end, which repeat() of an empty dataset reaches immediately.
            if not (is_single_step and iteration.is_endless):
                raise
            return LoopResult.make_empty(self.global_step, num_checked=0, has_data=False)
        fetched_by_name = dict(zip(self.fetches.names, fetched, strict=True))
        return LoopResult(global_step, has_data, global_steps, losses, finite, fetched_by_name)

    def _make_constant(self, number: int | bool) -> tf.Tensor:
        """Return a number as a tensor, cached, since most loops have the same numbers."""
        key = type(number), number  # True equals 1.
        if key not in self._constants:
            if len(self._constants) > _MAX_CONSTANTS:
                self._constants.clear()
            self._constants[key] = tf.constant(number)
        return self._constants[key]

    def compute_finiteness(self) -> npt.NDArray[np.bool_]:
        """Return whether all values of each variable of `checked` are finite (NumPy, bool [checked])."""
        if self._are_finite is None:
            check = functools.partial(self._are_all_finite, self.checked)
            self._are_finite = tf.function(check, autograph=False).get_concrete_function()
        finite: npt.NDArray[np.bool_] = self._are_finite().numpy()
        return finite

    def _find_compiled(self, iteration: Iteration, is_single_step: bool, fed_names: tuple[str, ...]) -> _Loop:
        """Return the loop over iterators like that of `iteration`, or the single step; traced at the first call.

        Args:
            iteration: the data.
            is_single_step: whether it is a single step.
            fed_names: names of the placeholders that take values.
        """
        request_key = iteration, self.fetches.key, is_single_step, fed_names
        # Compared before the specs, whose comparison at each loop would cost time.
        if self._last_loop is not None:
            last_key, loop = self._last_loop
            if last_key == request_key:
                return loop
        key = iteration.spec, iteration.is_endless, is_single_step, fed_names
        loop = self._find_loop(key, lambda: self._compile(iteration, is_single_step, fed_names))
        self._last_loop = request_key, loop
        return loop

    def _compile(self, iteration: Iteration, is_single_step: bool, fed_names: tuple[str, ...]) -> _Loop:
        """Return the function for iterators like that of `iteration`.

        Returns:
            A function of the iterator's tensors, the maximum number of steps (scalar int32), whether tf.summary writes in the last
            step (scalar bool), and the values of the placeholders `fed_names`. It returns the first five fields of a LoopResult and
            a list of the fetched tensors.
        """
        replica_step = ReplicaStep(
            self._traced, self.fetches, self.replicas, fed_names, writes_summaries=self.uses_tf_summary
        )
        specs = [tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in self.fetches.tensors]
        placeholders = [self.blueprint.graph.get_tensor_by_name(name) for name in fed_names]
        # A loop records the global step after each step, unless every step adds 1 to it.
        counts_every_step = self.counts_every_step

        def run(*arguments: tf.Tensor) -> tuple[Tensors, ...]:
            """Add the loop or the single step to a tf.function; its arguments and results are those of `_compile`'s function."""
            num_feeds = len(placeholders)
            *iterator_tensors, max_loop_steps, records_summaries = arguments[: len(arguments) - num_feeds]
            feeds = arguments[len(arguments) - num_feeds :]
            step = functools.partial(self._add_replica_step, replica_step, feeds)
            iterator = pack_iterator(iteration.spec, iterator_tensors)
            if is_single_step and iteration.is_endless:
                return self._add_step(step, iterator, records_summaries)
            if is_single_step:
                return self._add_step_if_data(step, iterator, records_summaries, specs)
            return self._add_loop(step, iterator, max_loop_steps, records_summaries, specs, counts_every_step)

        # Only the specs of these are used; 0 and False stand for max_loop_steps and records_summaries.
        arguments = [*iteration.tensors, tf.constant(0), tf.constant(False), *placeholders]
        signature = [tf.TensorSpec(argument.shape, argument.dtype) for argument in arguments]
        compiled: _Loop = tf.function(run, input_signature=signature, autograph=False)
        return compiled.get_concrete_function()  # type: ignore[attr-defined, no-any-return]  # TensorFlow is untyped

    def _add_step(self, step: _Step, iterator: tf.data.Iterator, records_summaries: tf.Tensor) -> tuple[Tensors, ...]:
        """Add a single step on endless data, without a test for its end.

        Args:
            step: function that adds a step for an element.
            iterator: iterator over the data.
            records_summaries: whether tf.summary writes (scalar bool).

        Returns:
            The first five fields of a LoopResult, and a list of the fetched tensors.
        """
        loss, *fetched = step(iterator.get_next(), records_summaries)
        global_steps = tf.reshape(self._read_global_step(), [1])
        # Single steps check no variables; the host does at intervals.
        return *self._make_outputs(tf.constant(True), global_steps, tf.reshape(loss, [1]), checked=()), fetched

    def _add_step_if_data(
        self, step: _Step, iterator: tf.data.Iterator, records_summaries: tf.Tensor, specs: Sequence[tf.TensorSpec]
    ) -> tuple[Tensors, ...]:
        """Add a single step that runs if there is data.

        Args:
            step: function that adds a step for an element.
            iterator: iterator over the data.
            records_summaries: whether tf.summary writes (scalar bool).
            specs: specs of the fetched tensors, which are zeros without data.

        Returns:
            The first five fields of a LoopResult, and a list of the fetched tensors.
        """
        element = iterator.get_next_as_optional()
        has_data = element.has_value()
        loss, *fetched = tf.cond(
            has_data,
            lambda: step(element.get_value(), records_summaries),
            lambda: (tf.constant(0.0), *map(_make_zeros, specs)),
        )
        num_done = tf.cast(has_data, tf.int32)  # 0 or 1, the length of the lists of global steps and losses.
        global_steps = tf.reshape(self._read_global_step(), [1])[:num_done]
        # Single steps check no variables; the host does at intervals.
        return *self._make_outputs(has_data, global_steps, tf.reshape(loss, [1])[:num_done], checked=()), fetched

    def _add_loop(
        self,
        step: _Step,
        iterator: tf.data.Iterator,
        max_loop_steps: tf.Tensor,
        records_summaries: tf.Tensor,
        specs: Sequence[tf.TensorSpec],
        counts_every_step: bool,
    ) -> tuple[Tensors, ...]:
        """Add a while_loop of up to `max_loop_steps` steps, until the data ends or a loss is NaN.

        The variables of the while_loop are the number of steps done, whether there was data for all of them, the tensor lists of
        losses and, unless `counts_every_step`, of global steps, the last loss, and the fetched tensors.

        Args:
            step: function that adds a step for an element.
            iterator: iterator over the data.
            max_loop_steps: maximum number of steps (scalar int32).
            records_summaries: whether tf.summary writes in the last of `max_loop_steps` steps (scalar bool).
            specs: specs of the fetched tensors.
            counts_every_step: whether each step adds 1 to the global step.

        Returns:
            The first five fields of a LoopResult, and a list of the fetched tensors.
        """

        def can_continue(
            num_done: tf.Tensor, has_data: tf.Tensor, lists: tuple[tf.Tensor, ...], loss: tf.Tensor, *fetched: tf.Tensor
        ) -> tf.Tensor:
            """Return whether the loop tries another step."""
            del lists, fetched
            return (num_done < max_loop_steps) & has_data & ~tf.math.is_nan(loss)

        def run_step(
            element: Tensors, records_summaries_now: tf.Tensor, lists: tuple[tf.Tensor, ...]
        ) -> tuple[Tensors, ...]:
            """Run a step; return the lists with its results, its loss and the fetched tensors."""
            loss, *fetched = step(element, records_summaries_now)
            values = (loss,) if counts_every_step else (loss, self._read_global_step())
            return tuple(map(_push, lists, values)), loss, *fetched

        def try_step(
            num_done: tf.Tensor, has_data: tf.Tensor, lists: tuple[tf.Tensor, ...], *last_outputs: tf.Tensor
        ) -> tuple[Tensors, ...]:
            """Run a step if there is data, else keep the outputs of the last one; return the new variables of the while_loop."""
            element = iterator.get_next_as_optional()
            has_data = element.has_value()
            records_summaries_now = records_summaries & tf.equal(num_done + 1, max_loop_steps)  # Only in the last step.
            step_outputs = tf.cond(
                has_data,
                lambda: run_step(element.get_value(), records_summaries_now, lists),
                lambda: (lists, *last_outputs),
            )
            return num_done + tf.cast(has_data, tf.int32), has_data, *step_outputs

        scalar = tf.TensorShape([])
        element_shape = tf.constant([], tf.int32)  # Scalars.
        # A tensor list grows in place, at 1.3 us a step.
        dtypes = (tf.float32,) if counts_every_step else (tf.float32, tf.int64)
        lists = tuple(
            tf.raw_ops.EmptyTensorList(element_shape=element_shape, max_num_elements=-1, element_dtype=dtype)
            for dtype in dtypes
        )
        _, has_data, lists, _, *fetched = tf.while_loop(
            can_continue,
            try_step,
            (tf.constant(0), tf.constant(True), lists, tf.constant(0.0), *map(_make_zeros, specs)),
            shape_invariants=(scalar, scalar, (scalar,) * len(lists), scalar, *(spec.shape for spec in specs)),
        )
        losses, *listed_global_steps = (
            tf.raw_ops.TensorListStack(input_handle=tensor_list, element_shape=element_shape, element_dtype=dtype)
            for tensor_list, dtype in zip(lists, dtypes, strict=True)
        )
        if counts_every_step:  # The global steps follow from the last one.
            num_steps = tf.size(losses, tf.int64)
            global_steps = self._read_global_step() - num_steps + tf.range(1, num_steps + 1)
        else:
            (global_steps,) = listed_global_steps
        return *self._make_outputs(has_data, global_steps, losses, self.checked), fetched

    def _add_replica_step(
        self, replica_step: ReplicaStep, feeds: Sequence[tf.Tensor], element: Tensors, records_summaries: tf.Tensor
    ) -> tuple[tf.Tensor, ...]:
        """Add a step of the only replica, with host_call; return the loss and the fetched tensors.

        Args:
            replica_step: the step.
            feeds: tensors for the fed placeholders.
            element: (features, labels), or features if there are no labels.
            records_summaries: whether tf.summary writes (scalar bool).
        """
        _, label_specs = self._traced.specs
        batch = (element, None) if label_specs is None else element
        loss, fetched, host_tensors = replica_step(
            tf.constant(0), records_summaries, batch, self._variables_by_name, feeds
        )
        if self._host_call is not None:
            loss = self._host_call.update(host_tensors, loss)
        return loss, *fetched

    def _read_global_step(self) -> tf.Tensor:
        return tf.cast(self._variables_by_name["global_step"].read_value(), tf.int64)

    def _make_outputs(
        self, has_data: tf.Tensor, global_steps: tf.Tensor, losses: tf.Tensor, checked: Sequence[str]
    ) -> tuple[tf.Tensor, ...]:
        """Return the first five fields of a LoopResult; call it after the steps, since it reads the global step and the variables.

        Args:
            has_data: whether there was data for all steps (scalar bool).
            global_steps: global step after each step (int64 [steps]).
            losses: loss of each step (float32 [steps]).
            checked: names of the variables to test for finite values.
        """
        return self._read_global_step(), has_data, global_steps, losses, self._are_all_finite(checked)

    def _are_all_finite(self, checked: Sequence[str]) -> tf.Tensor:
        """Return whether all values of each variable are finite, bool [checked]."""
        finite = [tf.reduce_all(tf.math.is_finite(self._variables_by_name[name])) for name in checked]
        return tf.stack(finite) if finite else tf.ones([0], tf.bool)


def _push(tensor_list: tf.Tensor, element: tf.Tensor) -> tf.Tensor:
    return tf.raw_ops.TensorListPushBack(input_handle=tensor_list, tensor=element)


def _make_zeros(spec: tf.TensorSpec) -> tf.Tensor:
    """Return zeros that fit a spec, with sizes of 0 where it has none."""
    return tf.zeros([] if spec.shape.rank is None else [size or 0 for size in spec.shape], spec.dtype)

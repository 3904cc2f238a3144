"""Summaries in a model_fn, written on the host from the values of a step."""

from collections.abc import Mapping, Sequence

import numpy as np
import tensorflow as tf

from tpudata.devices.errors import ModelFnValueError
from tpudata.estimator.fetching.fetch_plan import plan_fetches
from tpudata.estimator.fetching.hook_session import HookSession
from tpudata.estimator.hooks.events import EventWriter
from tpudata.estimator.hooks.monitor import Request
from tpudata.estimator.steps.train_step import TrainStep
from tpudata.estimator.tracing.effects import list_results
from tpudata.tensor_types import Array, GraphElement

_Keys = tf.compat.v1.GraphKeys


class ModelSummaries:
    """The summaries of one training.

    Summaries of `tf.summary` are written by the step itself or, on several devices, by the host after the step.

    Attributes:
        uses_tf_summary: whether model_fn writes with tf.summary, and summaries are enabled.

    Args:
        train_step: step of the training.
        session: session of the run.
        scaffold: scaffold whose summary_op, if any, replaces all other summaries.
        is_enabled: whether to write summaries.
    """

    def __init__(
        self, train_step: TrainStep, session: HookSession, scaffold: tf.compat.v1.train.Scaffold, is_enabled: bool
    ) -> None:
        self._request: Request | None = None
        # Tensors of serialized `tf.compat.v1.Summary`s.
        self._tensors: list[tf.Tensor] = []
        self._fetches = train_step.fetches
        self.uses_tf_summary = is_enabled and train_step.uses_tf_summary
        if not is_enabled:
            return
        if scaffold.summary_op is not None:
            self._tensors = [session.find_element(scaffold.summary_op)]
        else:
            # SUMMARY_OP has the merged summaries, if the program merged them.
            tensors = session.graph.get_collection(_Keys.SUMMARY_OP) or session.graph.get_collection(_Keys.SUMMARIES)
            self._tensors = list({tensor.name: tensor for tensor in tensors}.values())
        # Branches and the bodies of loops are separate graphs, but they share the collections of model_fn's graph.
        inner = [tensor.op for tensor in self._tensors if tensor.graph is not session.graph]
        _reject_lost("the summary", inner)
        _reject_lost("tf.summary in", train_step.lost_summary_writes)
        writes = train_step.host_summary_writes
        if self._tensors or writes:
            # On devices, the host runs tf.summary's writes, which a bool placeholder switches on.
            feeds = {train_step.summary_switch_name: np.asarray(True)} if writes else {}
            fetch_plan = plan_fetches(
                [*self._tensors, *writes, *list_results(writes)], session.timing, frozenset(feeds)
            )
            self._request = Request(session, fetch_plan, feeds)

    @property
    def has_summaries(self) -> bool:
        """Whether there are summaries to write."""
        return self._request is not None or self.uses_tf_summary

    @property
    def step_fetches(self) -> tuple[GraphElement, ...]:
        """Tensors of the scratch graph that the step must return, and operations that it must run."""
        return () if self._request is None else self._request.step_fetches

    @property
    def needs_single_step(self) -> bool:
        """Whether a step whose summaries are written must run as a single step, not at the end of a loop.

        It must if summaries use values of variables from before the step, or have side effects.
        """
        if self._request is None:
            return False
        return self._request.needs_values_before or any(map(self._fetches.has_effect, self._request.step_fetches))

    def begin(self) -> None:
        """Compute the values that the summaries take from before the step, such as values of variables."""
        if self._request is not None:
            self._request.begin()

    def write(self, step: int, fetched: Mapping[str, Array], events: EventWriter) -> None:
        """Write the summaries of a step; do nothing if the data ended before it.

        Args:
            step: the global step.
            fetched: the step's values by name of the tensor.
            events: the event file.
        """
        if self._request is None:  # There are no summaries.
            return
        if any(fetch.name not in fetched for fetch in self._request.step_fetches):
            return
        values = self._request.finish(fetched)
        for tensor in self._tensors:
            events.write_summary(step, values[tensor.name])


def _reject_lost(subject: str, operations: Sequence[tf.Operation]) -> None:
    """Raise ModelFnValueError if there are operations whose summaries cannot be written.

    Args:
        subject: start of the message, before the name of the first operation.
        operations: the operations.
    """
    if operations:
        raise ModelFnValueError(
            f"model_fn: {subject} {operations[0].name!r} is in a loop, a branch or a function, where it cannot be written. Make"
            " the summary outside, from a result."
        )

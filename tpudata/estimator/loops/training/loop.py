"""The training loop on the host, which calls hooks, logs, checks, writes summaries and saves between two loops of the device."""

import contextlib
import logging
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from tpudata.devices.errors import ModelFnValueError
from tpudata.estimator.api.counts import check_steps
from tpudata.estimator.api.hook_lists import check_hooks, check_listeners
from tpudata.estimator.api.mode_keys import ModeKeys
from tpudata.estimator.config.tpu_config import TPUConfig
from tpudata.estimator.feeding.iteration import Iteration
from tpudata.estimator.feeding.signature import leaves
from tpudata.estimator.feeding.sparse_parts import without_sparse
from tpudata.estimator.hooks.monitor import tensor_names
from tpudata.estimator.loops.feed import Feed
from tpudata.estimator.loops.runtime import Runtime
from tpudata.estimator.loops.training.checkpointing import CheckpointFollower
from tpudata.estimator.loops.training.finite_check import FiniteCheck
from tpudata.estimator.loops.training.pace import LoopSize
from tpudata.estimator.loops.training.parts import Request, TrainingParts, training_parts
from tpudata.estimator.loops.training.profile import Profiler
from tpudata.estimator.loops.training.progress import Progress
from tpudata.estimator.loops.training.termination import Termination, ended_by_sigterm
from tpudata.estimator.state.checkpoint import Checkpoint
from tpudata.estimator.state.checkpoints import latest_of_chief
from tpudata.estimator.steps.train_step import LoopRequest, TrainStep

_log = logging.getLogger("tpudata")


def train(
    runtime: Runtime,
    input_fn: Any,
    steps: int | None,
    max_steps: int | None,
    hooks: Any = None,
    saving_listeners: Any = None,
    follower: CheckpointFollower | None = None,
) -> float | None:
    """Train as described in `TPUEstimator.train`; return the loss of the last step, or None if no step was done.

    `follower` is called for each written checkpoint except the one at the start, and at the end.
    """
    check_steps(steps, max_steps)
    hooks = check_hooks(hooks, "train(hooks=...)")
    listeners = check_listeners(saving_listeners, "train(saving_listeners=...)")
    if steps is None and max_steps is None and runtime.topology.is_tpu:
        raise ValueError(
            "train on a TPU needs a limit, as the device runs whole loops (got none, expected steps or max_steps). Pass one of "
            "them."
        )
    peers = runtime.peers
    ending = ended_by_sigterm() if runtime.config.exit_on_sigterm else contextlib.nullcontext(Termination())
    with ending as termination, peers.watched():
        start = latest_of_chief(runtime.model_dir, peers)
        if max_steps is not None and start is not None and start.step() >= max_steps:
            _log.info("Nothing to train: %s has reached max_steps=%d.", start.prefix, max_steps)
            return None
        # Processes of a cluster end together, after the first loop.
        with termination.nothing_to_lose() if peers.count == 1 else contextlib.nullcontext():
            feed = runtime.feed(input_fn, ModeKeys.TRAIN, 0 if start is None else start.step())
            step: TrainStep = runtime.step(ModeKeys.TRAIN, feed.element_spec)
        parts = training_parts(runtime, step, Request(start, hooks, listeners, follower, termination))
        training = _Training(runtime, step, parts, start, termination, _rows_of_a_step(runtime, feed.element_spec))
        try:
            return training.run(feed, steps, max_steps)
        finally:
            training.close()


def _rows_of_a_step(runtime: Runtime, element_spec: Any) -> int | None:
    """Return the global batch size, or None if it is unknown."""
    size = runtime.user_model.batch_sizes[ModeKeys.TRAIN]
    if size is not None:
        return size
    sizes = {spec.shape[0] for _, spec in leaves((without_sparse(element_spec), None)) if spec.shape.rank}
    static = sizes.pop() if len(sizes) == 1 else None
    return None if static is None else int(static) * runtime.peers.count


class _Training:
    """One call of train: its position, and the work that is due."""

    def __init__(
        self,
        runtime: Runtime,
        step: TrainStep,
        parts: TrainingParts,
        start: Checkpoint | None,
        termination: Termination,
        rows: int | None,
    ) -> None:
        config = runtime.config
        self.step = 0
        self._runtime = runtime
        self._peers = runtime.peers
        self._train_step = step
        self._parts = parts
        self._start = start
        self._termination = termination
        self._rows = rows
        # Without a TPU, hooks see every step, and loops end at all steps at which something is due. In a cluster this holds for all
        # processes, even if only the chief has hooks.
        self._is_exact = not runtime.topology.is_tpu
        self._is_step = parts.has_hooks and self._is_exact
        self._stops = False
        tpu = config.tpu_config
        # A hook may save at any step.
        every = 1 if parts.checkpointing.by_hook else tpu.steps_of_a_loop
        self._finite_check = FiniteCheck(step, runtime.model_dir, every, is_step=self._is_step)
        self._loop = LoopSize(TPUConfig(1) if self._is_step else tpu)
        profiled = config.profile_steps if self._peers.is_chief else None
        self._profiler = Profiler(runtime.model_dir, profiled, on_devices=bool(runtime.topology.devices))

    def run(self, feed: Feed, steps: int | None, max_steps: int | None) -> float | None:
        """Run loops up to a limit (None: until the data ends), and save at the start, when due, and at the end.

        Returns:
            The loss of the last step, or None if there was no data for one.
        """
        parts = self._parts
        self._begin()
        last = self.step + steps if steps is not None else max_steps
        # A hook may change the step.
        counts = self._train_step.counts_all and not parts.has_hooks
        # Hooks may have initialised the iterators of input_fn.
        with contextlib.closing(feed.iterate(last - self.step if counts and last is not None else None)) as iteration:
            last_loss = self._run_loops(iteration, last)
        if last_loss is not None:
            self._finite_check.check_variables(self.step, last_loss)
            self._progress.end(self.step, last_loss)
        parts.checkpointing.end(self.step)
        parts.monitor.end()
        is_ended = self._termination.requested or self._stops or parts.monitor.should_stop
        if last_loss is None and not is_ended and (last is None or self.step < last):
            _log.warning("train: the input has no batch after step %d: nothing is trained. Check input_fn.", self.step)
        if self._termination.requested:
            saved = (
                ", which is saved. Run again to continue"
                if parts.checkpointing.saves
                else "; the RunConfig has no interval for checkpoints"
            )
            _log.warning("SIGTERM: training stopped at step %d%s.", self.step, saved)
        return last_loss

    def _run_loops(self, iteration: Iteration, last: int | None) -> float | None:
        """Run loops up to a step (None: until the data ends); return the loss of the last step, or None if there was none."""
        parts = self._parts
        last_loss = None
        while (last is None or self.step < last) and (size := self._next_size(last)):
            begin = time.monotonic()
            self._profiler.before_loop(self.step)
            asked = parts.monitor.before_run()
            # The processes of a cluster take this step together, and end after it.
            if parts.monitor.should_stop and self._peers.count == 1:
                _log.info("A hook stopped training at step %d.", self.step)
                break
            before = self.step
            steps, losses, has_data, fetched = self._run_loop(iteration, size, asked)
            self._profiler.after_loop(self.step)
            self._loop.measure(len(losses), time.monotonic() - begin)
            if losses:
                last_loss = losses[-1]
                self._progress.report(before, steps, losses, fetched)
                if parts.checkpointing.is_due(self.step):
                    self._finite_check.check_variables(self.step, last_loss)
                    self._stops |= parts.checkpointing.save(self.step)
                parts.monitor.after_run(fetched)
                if self._note_writes() and self._peers.count == 1:  # A hook may count the steps.
                    self.step = self._train_step.global_step
            if not has_data:
                _log.info("The input ended at step %d.", self.step)
                break
        return last_loss

    def close(self) -> None:
        """Write buffered profiles and summaries."""
        self._note_writes()
        self._profiler.close(self.step)
        self._parts.events.close()
        self._train_step.flush()

    def _note_writes(self) -> bool:
        """Return whether hooks or listeners assigned to variables, and note that no checkpoint has these values."""
        has_written = self._parts.monitor.takes_writes()
        if has_written:
            self._runtime.store.mark(list(self._train_step.variables), None)
        return has_written

    def _begin(self) -> None:
        """Load the variables, and begin the work of hooks, listeners and the log."""
        parts, config = self._parts, self._runtime.config
        parts.checkpointing.prepare()
        parts.monitor.begin()
        parts.loader.load(self._start)
        self._train_step.reset_local()
        self.step = self._train_step.global_step
        self._progress = Progress(
            parts.events, parts.summaries, config, self._rows, self.step, every_step=self._is_exact
        )
        parts.checkpointing.begin(self.step)
        parts.monitor.after_create_session()
        if not self._is_exact and config.tpu_config.initial_infeed_sleep_secs:
            time.sleep(config.tpu_config.initial_infeed_sleep_secs)

    def _next_size(self, last: int | None) -> int:
        """Return the chief's number of steps for the next loop; 0 if SIGTERM or a hook ends training in a process."""
        size = self._loop.next(self.step, (last, *self._ends())) if self._peers.is_chief else 0
        stops = self._stops or self._parts.monitor.should_stop
        size, stopped, ended = self._peers.sum_numbers([size, int(stops), int(self._termination.requested)])
        if ended:
            self._termination.requested = True
        elif stopped:
            _log.info("A hook stopped training at step %d.", self.step)
        return 0 if stopped or ended else size

    def _ends(self) -> tuple[int | None, ...]:
        """Return the steps at which a loop has to end."""
        if not self._is_exact:
            return (self._profiler.end(self.step),)
        return (
            self._profiler.end(self.step),
            self._parts.checkpointing.next_step(self.step, self._loop.step_seconds),
            *self._progress.ends(self.step),
        )

    def _run_loop(
        self, iteration: Iteration, size: int, asked: Sequence[Any]
    ) -> tuple[list[int], list[float], bool, dict[str, Any]]:
        """Run a loop; return the global step after each step and the losses, whether there is more data, and fetched values."""
        if size > 1 and self._progress.summarises(size) and self._parts.summaries.needs_own_step:
            steps, losses, has_data, fetched = self._run_steps(iteration, size - 1, asked, is_due=False)
            if has_data and len(losses) == size - 1:
                last_steps, last_losses, has_data, last_fetched = self._run_steps(iteration, 1, asked, is_due=True)
                return [*steps, *last_steps], [*losses, *last_losses], has_data, fetched | last_fetched
            return steps, losses, has_data, fetched
        return self._run_steps(iteration, size, asked, is_due=self._progress.summarises(size))

    def _run_steps(
        self, iteration: Iteration, size: int, asked: Sequence[Any], *, is_due: bool
    ) -> tuple[list[int], list[float], bool, dict[str, Any]]:
        """Run steps, of which the last is summarised if `is_due`; return what `_run_loop` does."""
        summaries, step = self._parts.summaries, self._train_step
        wanted = tensor_names(asked)
        # Always fetch summaries without an effect, so that the step is built once.
        of_summaries = [item for item in summaries.step if is_due or not step.fetches.has_effect(item)]
        step.fetches.ask((*asked, *of_summaries))
        if is_due:
            summaries.begin()
            wanted |= {item.name for item in summaries.step}
        self._runtime.store.mark(list(step.variables), None)
        before = self.step
        records = is_due and summaries.uses_tf_summary
        results = step.run(iteration, LoopRequest(size, records, self._is_step, self._parts.monitor.model_feeds))
        self.step, losses = int(results.global_step), np.asarray(results.losses)
        if len(losses) and self.step == before and not self._parts.has_hooks and not step.counts_steps:
            raise ModelFnValueError(
                "model_fn: train_op never changes the global step, so that training would not end. Pass "
                "global_step=tf.compat.v1.train.get_global_step() to the optimizer's minimize or apply_gradients."
            )
        self._finite_check.after_loop(self.step, losses, results)
        fetched = {name: np.asarray(results.fetched[name]) for name in wanted} if len(losses) else {}
        return np.asarray(results.steps).tolist(), losses.tolist(), bool(results.has_data), fetched

"""The training loop on the host, which calls hooks, logs, checks, writes summaries and saves between two loops of the device."""

import contextlib
import logging
import time
from collections.abc import Sequence

from tpudata.estimator.api.hook_lists import CheckpointSaverListener, SessionRunHook, check_hooks, check_listeners
from tpudata.estimator.api.mode_keys import ModeKeys
from tpudata.estimator.api.step_limits import check_steps
from tpudata.estimator.api.user_functions import InputFunction
from tpudata.estimator.config.tpu_config import TPUConfig
from tpudata.estimator.feeding.iteration import StepIteration
from tpudata.estimator.hooks.events import EventWriter
from tpudata.estimator.hooks.model_summaries import ModelSummaries
from tpudata.estimator.hooks.monitor import Monitor, list_training_hooks, select_worker_hooks
from tpudata.estimator.hooks.profiler import Profiler
from tpudata.estimator.hooks.scaffold import ScaffoldLoader, has_scaffold, make_scaffold
from tpudata.estimator.loops.feed import Feed
from tpudata.estimator.loops.runtime import Runtime
from tpudata.estimator.loops.training.checkpointing import CheckpointFollower, Checkpointing
from tpudata.estimator.loops.training.device_loops import DeviceLoops
from tpudata.estimator.loops.training.finite_check import FiniteCheck
from tpudata.estimator.loops.training.pace import LoopSize
from tpudata.estimator.loops.training.progress import Progress, count_examples
from tpudata.estimator.loops.training.termination import Termination, handle_sigterm
from tpudata.estimator.state.checkpoint import Checkpoint
from tpudata.estimator.state.checkpoints import find_chiefs_latest
from tpudata.estimator.steps.train_step import TrainStep

_log = logging.getLogger("tpudata")


def train(
    runtime: Runtime,
    input_fn: InputFunction,
    steps: int | None,
    max_steps: int | None,
    hooks: Sequence[SessionRunHook] | None = None,
    saving_listeners: Sequence[CheckpointSaverListener] | None = None,
    follower: CheckpointFollower | None = None,
) -> float | None:
    """Train as described in `TPUEstimator.train`; return the loss of the last step, or None if no step was done.

    `follower.after_save` is called for each written checkpoint except the one at the start, and `follower.finish` once at the end.
    """
    steps, max_steps = check_steps(steps, max_steps)
    hooks = check_hooks(hooks, "train(hooks=...)")
    listeners = check_listeners(saving_listeners, "train(saving_listeners=...)")
    if steps is None and max_steps is None and runtime.topology.is_tpu:
        raise ValueError(
            "train on a TPU needs a limit, as the device runs whole loops (got none, expected steps or max_steps). Pass one of "
            "them."
        )
    peers = runtime.peers
    handles_sigterm = runtime.config.exit_on_sigterm
    sigterm_context = handle_sigterm() if handles_sigterm else contextlib.nullcontext(Termination())
    with sigterm_context as termination, peers.translate_errors():
        start_checkpoint = find_chiefs_latest(runtime.model_dir, peers)
        start_step = 0 if start_checkpoint is None else start_checkpoint.read_step()
        if max_steps is not None and start_checkpoint is not None and start_step >= max_steps:
            _log.info("Nothing to train: %s has reached max_steps=%d.", start_checkpoint.prefix, max_steps)
            return None
        # A single process may exit here; the processes of a cluster must end together, after the first loop.
        with termination.exit_immediately() if peers.count == 1 else contextlib.nullcontext():
            feed = runtime.make_feed(input_fn, ModeKeys.TRAIN, start_step)
            step = runtime.get_step(ModeKeys.TRAIN, feed.element_spec)
        assert isinstance(step, TrainStep)  # The class for this mode.
        training = _Training(runtime, step, start_checkpoint, hooks, listeners, follower, termination)
        try:
            return training.run(feed, steps, max_steps)
        finally:
            training.close()


class _Training:
    """One call of train: its parts, and the work that is due between two loops.

    Args:
        runtime: the model on its devices.
        step: the compiled step.
        start_checkpoint: checkpoint that training begins with, or None.
        hooks: hooks of the call, without the hooks of the spec.
        listeners: saving listeners of the call.
        follower: work after each checkpoint; or None.
        termination: state of a requested termination.
    """

    def __init__(
        self,
        runtime: Runtime,
        step: TrainStep,
        start_checkpoint: Checkpoint | None,
        hooks: Sequence[SessionRunHook],
        listeners: Sequence[CheckpointSaverListener],
        follower: CheckpointFollower | None,
        termination: Termination,
    ) -> None:
        config, tpu_config, peers = runtime.config, runtime.config.tpu_config, runtime.peers
        self._runtime = runtime
        self._peers = peers
        self._step = step
        self._start_checkpoint = start_checkpoint
        self._termination = termination
        self._listener_stops = False
        has_additions = bool(list_training_hooks(step.spec, hooks) or listeners) or has_scaffold(step.spec)
        self._session = session = step.make_session(has_additions=has_additions)
        # The session may have called model_fn again, which makes other hooks.
        hooks = list_training_hooks(step.spec, hooks)
        scaffold = make_scaffold(step.spec, session)
        self._loader = ScaffoldLoader(step, runtime.store, session, scaffold)
        self._events = EventWriter(runtime.model_dir if peers.is_chief else None)
        process_hooks = hooks if peers.is_chief else select_worker_hooks(step.spec, hooks)
        loop_fetches = [step.spec.train_op, step.spec.loss]
        # Hooks of several processes could feed different values.
        self._monitor = Monitor(session, process_hooks, loop_fetches, feeds_model=peers.count == 1)
        self._summaries = ModelSummaries(step, session, scaffold, is_enabled=config.save_summary_steps is not None)
        self._checkpointing = Checkpointing(
            runtime,
            step,
            session,
            self._loader,
            self._events,
            start_checkpoint=start_checkpoint,
            saver=scaffold.saver,
            hooks=hooks,
            listeners=listeners if peers.is_chief else (),  # The chief writes the checkpoints.
            follower=follower,
            termination=termination,
        )
        # Without a TPU, hooks see every step, and loops end at all steps at which something is due. In a cluster this holds for all
        # processes, even if only the chief has hooks.
        self._ends_loops_when_due = not runtime.topology.is_tpu
        self._has_hooks = bool(hooks)
        is_single_step = self._has_hooks and self._ends_loops_when_due
        # A hook may save at any step.
        check_interval = 1 if self._checkpointing.saves_by_hook else tpu_config.steps_of_a_loop
        self._finite_check = FiniteCheck(step, runtime.model_dir, check_interval, is_single_step=is_single_step)
        self._loops = DeviceLoops(
            step,
            runtime.store,
            self._summaries,
            self._finite_check,
            has_hooks=self._has_hooks,
            is_single_step=is_single_step,
        )
        self._loop_size = LoopSize(TPUConfig(iterations_per_loop=1) if is_single_step else tpu_config)
        profile_steps = config.profile_steps if peers.is_chief else None
        self._profiler = Profiler(runtime.model_dir, profile_steps, is_on_devices=bool(runtime.topology.devices))

    def run(self, feed: Feed, steps: int | None, max_steps: int | None) -> float | None:
        """Run loops until the data or training ends, and save at the start, when due, and at the end.

        Args:
            feed: the data.
            steps: number of steps to add, or None.
            max_steps: global step to stop at, or None. If both are None, only the end of the data limits the steps.

        Returns:
            The loss of the last step, or None if no step was done.
        """
        self._begin(feed)
        end_step = self.global_step + steps if steps is not None else max_steps
        # Number of steps to read data for. It is unknown if a step or a hook may change the global step by something other than 1.
        num_steps = None
        if end_step is not None and self._step.counts_every_step and not self._has_hooks:
            num_steps = end_step - self.global_step
        # Reading starts after `_begin`, in which hooks may initialize the iterators of input_fn.
        with contextlib.closing(feed.iterate(num_steps)) as iteration:
            last_loss = self._run_loops(iteration, end_step)
        if last_loss is not None:
            self._finite_check.check_variables(self.global_step, last_loss)
            self._progress.end(self.global_step, last_loss)
        self._checkpointing.end(self.global_step)
        self._monitor.end()
        is_stopped = self._termination.is_requested or self._listener_stops or self._monitor.should_stop
        if last_loss is None and not is_stopped and (end_step is None or self.global_step < end_step):
            _log.warning(
                "train: the input has no batch after step %d: nothing is trained. Check input_fn.", self.global_step
            )
        if self._termination.is_requested:
            consequence = (
                ", which is saved. Run again to continue"
                if self._checkpointing.saves
                else "; the RunConfig has no interval for checkpoints"
            )
            _log.warning("SIGTERM: training stopped at step %d%s.", self.global_step, consequence)
        return last_loss

    @property
    def global_step(self) -> int:
        """The global step."""
        return self._loops.global_step

    def _begin(self, feed: Feed) -> None:
        """Load the variables, and begin the work of hooks, listeners and the log, in the order of a MonitoredSession."""
        runtime = self._runtime
        infeed_sleep_seconds = runtime.config.tpu_config.initial_infeed_sleep_secs
        self._checkpointing.begin_listeners()
        self._monitor.begin()
        self._loader.load(self._start_checkpoint)
        self._step.reset_local()
        self._loops.global_step = self._step.global_step
        num_examples = count_examples(runtime, feed.element_spec)
        self._progress = Progress(
            self._events,
            self._summaries,
            runtime.config,
            num_examples,
            self.global_step,
            reports_every_step=self._ends_loops_when_due,
        )
        self._checkpointing.begin(self.global_step)
        self._monitor.after_create_session()
        if runtime.topology.is_tpu and infeed_sleep_seconds:  # As in TensorFlow's TPUEstimator, only on a TPU.
            time.sleep(infeed_sleep_seconds)

    def _run_loops(self, iteration: StepIteration, end_step: int | None) -> float | None:
        """Run loops up to a step (None: until the data ends); return the loss of the last step, or None if there was none."""
        last_loss = None
        # `_choose_next_size` returns 0 if SIGTERM, a hook or a listener ends training.
        while (end_step is None or self.global_step < end_step) and (size := self._choose_next_size(end_step)):
            start_time = time.monotonic()
            self._profiler.before_loop(self.global_step)
            fetches = self._monitor.before_run()
            # The processes of a cluster still run this loop together, and end after it.
            if self._monitor.should_stop and self._peers.count == 1:
                _log.info("A hook stopped training at step %d.", self.global_step)
                break
            step_before = self.global_step
            fetches_summaries = self._progress.are_summaries_due(num_steps=size)
            values = self._loops.run(
                iteration,
                fetches,
                self._monitor.model_feeds,
                max_loop_steps=size,
                fetches_summaries=fetches_summaries,
            )
            self._profiler.after_loop(self.global_step)
            self._loop_size.fit(len(values.losses), time.monotonic() - start_time)
            if values.losses:
                last_loss = values.losses[-1]
                self._progress.report(step_before, values.global_steps, values.losses, values.fetched)
                if self._checkpointing.is_due(self.global_step):
                    self._finite_check.check_variables(self.global_step, last_loss)
                    self._listener_stops |= self._checkpointing.save(self.global_step)
                self._monitor.after_run(values.fetched)
                hooks_have_written = self._forget_checkpoint_after_writes()
                if hooks_have_written and self._peers.count == 1:
                    # A hook may have assigned the global step. With several processes, all count the steps of the loops alike.
                    self._loops.global_step = self._step.global_step
            if not values.has_data:
                _log.info("The input ended at step %d.", self.global_step)
                break
        return last_loss

    def _choose_next_size(self, end_step: int | None) -> int:
        """Return the chief's number of steps for the next loop; 0 if SIGTERM, a hook or a listener ends training in any process."""
        # The processes sum their numbers, so all but the chief pass a size of 0.
        size = (
            self._loop_size.next(self.global_step, (end_step, *self._list_loop_ends())) if self._peers.is_chief else 0
        )
        is_stopped = self._listener_stops or self._monitor.should_stop
        size, num_stopped, num_terminated = self._peers.sum_numbers(
            [size, int(is_stopped), int(self._termination.is_requested)]
        )
        if num_terminated:  # Perhaps only in another process.
            self._termination.is_requested = True
        elif num_stopped:
            _log.info("A hook stopped training at step %d.", self.global_step)
        return 0 if num_stopped or num_terminated else size

    def _list_loop_ends(self) -> tuple[int | None, ...]:
        """Return steps that the next loop must not go beyond; None for work that is not due at a known step."""
        profile_end = self._profiler.find_loop_end(self.global_step)
        # On a TPU, no loop ends early for a checkpoint or the log: they wait for its end.
        if not self._ends_loops_when_due:
            return (profile_end,)
        checkpoint_step = self._checkpointing.find_next_step(self.global_step, self._loop_size.step_seconds)
        return (profile_end, checkpoint_step, *self._progress.list_loop_ends(self.global_step))

    def _forget_checkpoint_after_writes(self) -> bool:
        """Return whether hooks or listeners have assigned to variables; if so, record that no checkpoint has the values."""
        has_written = self._session.pop_has_written()
        if has_written:
            self._runtime.store.set_source(list(self._step.variables), source=None)
        return has_written

    def close(self) -> None:
        """Write buffered profiles and summaries, also after an error."""
        self._forget_checkpoint_after_writes()  # Hooks may have assigned to variables in `end`.
        self._profiler.close(self.global_step)
        self._events.close()
        self._step.flush()

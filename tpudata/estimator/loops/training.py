"""The training loop on the host: between two loops of the device it calls hooks, logs, checks, writes summaries and saves."""

import contextlib
import logging
import time
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tpudata.estimator.api.errors import CheckpointError, ClusterError, ModelFnValueError, NonFiniteError
from tpudata.estimator.api.hook_lists import check_hooks, check_listeners
from tpudata.estimator.api.mode_keys import ModeKeys
from tpudata.estimator.api.steps import check_steps
from tpudata.estimator.config.tpu_config import TPUConfig
from tpudata.estimator.feeding.iteration import Iteration
from tpudata.estimator.feeding.signature import leaves
from tpudata.estimator.hooks.events import EventWriter
from tpudata.estimator.hooks.model_summaries import ModelSummaries
from tpudata.estimator.hooks.monitor import Monitor, tensor_names
from tpudata.estimator.hooks.saving import AfterSave, Saving, hand_over, writes_files
from tpudata.estimator.hooks.scaffold import ScaffoldLoader, has_scaffold, make_scaffold
from tpudata.estimator.loops.pace import Cadence, LoopSize
from tpudata.estimator.loops.profile import Profiler
from tpudata.estimator.loops.progress import Progress
from tpudata.estimator.loops.runtime import Runtime
from tpudata.estimator.loops.termination import Termination, ended_by_sigterm
from tpudata.estimator.state import checkpoints
from tpudata.estimator.tracing.train_program import TrainProgram

_log = logging.getLogger("tpudata")


def train(
    runtime: Runtime,
    input_fn: Any,
    steps: int | None,
    max_steps: int | None,
    hooks: Any = None,
    saving_listeners: Any = None,
    after_save: AfterSave | None = None,
) -> float | None:
    """Train as `TPUEstimator.train` says; returns the last step's loss, or None where no step was done.

    `after_save` is called with each checkpoint that was written, but the one at the start.
    """
    check_steps(steps, max_steps)
    hooks = check_hooks(hooks, "train(hooks=...)")
    listeners = check_listeners(saving_listeners, "train(saving_listeners=...)")
    if steps is None and max_steps is None and runtime.topology.is_tpu:
        raise ValueError(
            "train on a TPU needs steps or max_steps: the device runs whole loops, so their end must be known."
        )
    peers = runtime.peers
    ending = ended_by_sigterm() if runtime.config.exit_on_sigterm else contextlib.nullcontext(Termination())
    with ending as termination, peers.watched():
        start = first_checkpoint(runtime)
        if max_steps is not None and start is not None and start.step() >= max_steps:
            _log.info("Nothing to train: %s has reached max_steps=%d.", start.prefix, max_steps)
            return None
        # Processes of a cluster end together, after the first loop.
        with termination.nothing_to_lose() if peers.count == 1 else contextlib.nullcontext():
            feed = runtime.feed(input_fn, ModeKeys.TRAIN, 0 if start is None else start.step())
            program: TrainProgram = runtime.program(ModeKeys.TRAIN, feed.element_spec)
        examples = _examples_per_step(runtime, feed.element_spec)
        run = _Run(runtime, program, examples, start, hooks, listeners, after_save, termination)
        try:
            with contextlib.closing(feed.iterate()) as iteration:
                return run.train(iteration, steps, max_steps)
        finally:
            run.profiler.close(run.step)
            run.events.close()
            program.flush()


def first_checkpoint(runtime: Runtime) -> checkpoints.Checkpoint | None:
    """Return the checkpoint to begin with, the chief's newest, or None.

    Raises:
        ClusterError: another process finds no such checkpoint in its model_dir.
    """
    peers = runtime.peers
    own = checkpoints.latest(runtime.model_dir) if peers.is_chief else None
    if peers.count == 1:
        return own
    data = peers.chiefs_bytes(b"" if own is None else own.to_bytes())
    if own is not None or not data:
        return own
    wanted = checkpoints.Checkpoint.from_bytes(data)
    try:
        found = checkpoints.Checkpoint.open(wanted.prefix)
    except CheckpointError:
        found = None
    if found != wanted:
        raise ClusterError(
            f"{runtime.model_dir}: the chief begins with {wanted.prefix}, which this process finds "
            f"{'not there' if found is None else 'different'} (expected one folder for all processes). Put model_dir on a storage "
            "that all machines share."
        )
    return found


def _examples_per_step(runtime: Runtime, element_spec: Any) -> int | None:
    size = runtime.batch_sizes[ModeKeys.TRAIN]
    if size is not None:
        return size
    sizes = {spec.shape[0] for _, spec in leaves((element_spec, None)) if spec.shape.rank}
    static = sizes.pop() if len(sizes) == 1 else None
    return None if static is None else int(static) * runtime.peers.count


class _Run:
    """One call of train: its place, its intervals, its hooks and its files."""

    def __init__(
        self,
        runtime: Runtime,
        program: TrainProgram,
        examples: int | None,
        start: checkpoints.Checkpoint | None,
        hooks: Sequence[Any],
        listeners: Sequence[Any],
        after_save: AfterSave | None,
        termination: Termination,
    ) -> None:
        spec, config = program.spec, runtime.config
        chief = getattr(spec, "training_chief_hooks", ())
        has_hooks = bool(chief or hooks or spec.training_hooks)
        session = program.session(is_added_to=has_hooks or bool(listeners) or has_scaffold(spec))
        spec = program.spec  # Its hooks may be new.
        hooks = (*getattr(spec, "training_chief_hooks", ()), *hooks, *spec.training_hooks)
        # Without a TPU, hooks see every step, and loops end at all steps that anything is due at. In a cluster they do so in all
        # processes, whatever hooks these leave to the chief.
        self._is_exact = not runtime.topology.is_tpu
        self._is_step = bool(hooks) and self._is_exact
        self._peers = peers = runtime.peers
        has_saver = any(isinstance(hook, tf.compat.v1.train.CheckpointSaverHook) for hook in hooks)
        if not peers.is_chief:
            chiefs = getattr(spec, "training_chief_hooks", ())
            hooks = tuple(hook for hook in hooks if not writes_files(hook) and hook not in chiefs)
            listeners = ()
        scaffold = make_scaffold(spec, session)
        wants_summaries = config.save_summary_steps is not None
        self.step = 0
        self.events = EventWriter(runtime.model_dir if peers.is_chief else None)
        self.profiler = Profiler(runtime.model_dir, config.profile_steps if peers.is_chief else None)
        self._runtime = runtime
        self._program = program
        self._examples = examples
        self._start = start
        self._after_save = after_save
        self._termination = termination
        feeds_model = runtime.topology.num_replicas == 1
        self._monitor = Monitor(session, hooks, [spec.train_op, spec.loss], feeds_model=feeds_model)
        self._loader = ScaffoldLoader(program, runtime.store, session, scaffold)
        self._model_summaries = ModelSummaries(program, session, scaffold, wants_summaries)
        start_step = None if start is None else start.step()
        retention = checkpoints.Retention(config.keep_checkpoint_max, config.keep_checkpoint_every_n_hours)
        self._saving: Saving | None = None
        self._stops = False
        hand_over(hooks, session, listeners, runtime.model_dir, retention, start_step or 0, self._tell)
        has_interval = config.save_checkpoints_steps is not None or config.save_checkpoints_secs is not None
        self._saves = has_saver or has_interval
        if not self._saves:
            if listeners or after_save is not None:
                raise ValueError(
                    "RunConfig(save_checkpoints_steps=None, save_checkpoints_secs=None) saves nothing, so saving_listeners and "
                    "train_and_evaluate would wait for ever. Set one of them, or pass a CheckpointSaverHook."
                )
        elif not has_saver:
            self._saving = Saving(
                runtime.model_dir, program.variables, retention, session, listeners, scaffold.saver, start_step, peers
            )
        self._loop = LoopSize(TPUConfig(1) if self._is_step else config.tpu_config)

    def train(self, iteration: Iteration, steps: int | None, max_steps: int | None) -> float | None:
        """Run loops until a limit (None: until the data ends), save at the start, when due, and at the end.

        Returns:
            The loss of the last step, or None where there was no data for one.
        """
        self._begin()
        if not self._is_exact and self._runtime.config.tpu_config.initial_infeed_sleep_secs:
            time.sleep(self._runtime.config.tpu_config.initial_infeed_sleep_secs)
        last = self.step + steps if steps is not None else max_steps
        last_loss = None
        while (last is None or self.step < last) and (size := self._next_size(last)):
            begin = time.monotonic()
            self.profiler.before_loop(self.step)
            asked = self._monitor.before_run()
            losses, has_data, fetched = self._run_loop(iteration, size, asked)
            self.profiler.after_loop(self.step)
            self._loop.measure(len(losses), time.monotonic() - begin)
            if losses:
                last_loss = losses[-1]
                self._progress.report(self.step, losses, fetched)
                if self._is_save_due():
                    self._stops |= self._save()
                self._monitor.after_run(fetched)
            if not has_data:
                _log.info("The input ended at step %d.", self.step)
                break
        if last_loss is not None:
            self._progress.end(self.step, last_loss)
        self._save()
        if self._saving is not None:
            self._saving.end(self.step)
        self._monitor.end()
        if self._termination.requested:
            saved = ", which is saved. Run again to carry on" if self._saves else "; no checkpoint was asked for"
            _log.warning("SIGTERM: training stopped at step %d%s.", self.step, saved)
        return last_loss

    def _next_size(self, last: int | None) -> int:
        """Return how many steps the next loop has, as the chief says; 0: none, as SIGTERM or a hook ends training in a process."""
        size = self._loop.next(self.step, (last, *self._ends())) if self._peers.is_chief else 0
        stops = self._stops or self._monitor.should_stop
        size, stopped, ended = self._peers.summed([size, int(stops), int(self._termination.requested)])
        if ended:
            self._termination.requested = True
        elif stopped:
            _log.info("A hook stopped training at step %d.", self.step)
        return 0 if stopped or ended else size

    def _is_save_due(self) -> bool:
        due = self._save_cadence.due(self.step)
        # Clocks differ.
        is_timed = self._runtime.config.save_checkpoints_secs is not None
        return bool(self._peers.chiefs(int(due))) if is_timed else due

    def _begin(self) -> None:
        config = self._runtime.config
        if self._saving is not None:
            self._saving.begin()
        self._monitor.begin()
        self._loader.load(self._start)
        self._program.local.reset()
        self.step = self._program.global_step
        seconds = config.save_checkpoints_secs
        self._save_cadence = Cadence(
            self.step, config.save_checkpoints_steps, seconds if isinstance(seconds, int | float) else None
        )
        self._progress = Progress(
            self.events, self._model_summaries, config, self._examples, self.step, every_step=self._is_exact
        )
        self._save(at_start=True)
        self._monitor.after_create_session()

    def _ends(self) -> tuple[int | None, ...]:
        if not self._is_exact:
            return (self.profiler.end(self.step),)
        return (
            self.profiler.end(self.step),
            self._save_cadence.next_step(self.step, self._loop.step_seconds),
            *self._progress.ends(self.step),
        )

    def _run_loop(
        self, iteration: Iteration, size: int, asked: Sequence[Any]
    ) -> tuple[list[float], bool, dict[str, Any]]:
        """Return the losses of the steps that were done, whether the data go on, and what the last step gave, by name."""
        summaries, wanted = self._model_summaries, tensor_names(asked)
        is_due = self._progress.summarises(self.step + size)
        # The step gives the rest in any case, so that it is built once.
        of_summaries = [item for item in summaries.step if is_due or not self._program.has_effect(item)]
        self._program.fetch((*asked, *of_summaries))
        if is_due:
            summaries.begin()
            wanted |= {item.name for item in summaries.step}
        self._runtime.store.mark(list(self._program.variables), None)
        before = self.step
        record = is_due and summaries.uses_tf_summary
        *results, fetched = self._program.run(
            iteration, size, record, is_step=self._is_step, feeds=self._monitor.model_feeds
        )
        step, done, has_data, losses, finite = (item.numpy() for item in results)
        self.step = int(step)
        if done and self.step == before:
            raise ModelFnValueError(
                "train_op did not change the global step: pass global_step=tf.compat.v1.train.get_global_step() to "
                "the optimizer's minimize or apply_gradients."
            )
        self._require_finite(float(losses[-1]) if done else 0.0, finite)
        return losses.tolist(), bool(has_data), {name: fetched[name].numpy() for name in wanted}

    def _require_finite(self, loss: float, finite: Any) -> None:
        loss_is_finite = loss - loss == 0.0
        if loss_is_finite and finite.all():
            return
        bad = [name for name, is_finite in zip(self._program.checked, finite, strict=True) if not is_finite]
        what = [] if loss_is_finite else [f"the loss is {loss}"]
        if bad:
            more = f" and {len(bad) - 1} more variables" if len(bad) > 1 else ""
            what.append(f"the variable {bad[0]!r}{more} holds NaN or Inf")
        saved = checkpoints.latest(self._runtime.model_dir)
        kept = "" if saved is None else f" The last good checkpoint is {saved.prefix}."
        raise NonFiniteError(
            f"Training stopped at step {self.step}: {', '.join(what)}. Lower the learning rate, or look at the input "
            f"for values that are not finite.{kept}"
        )

    def _save(self, *, at_start: bool = False) -> bool:
        """Write a checkpoint, unless this step's is there; returns whether a listener wants training to stop."""
        self._save_cadence.restart(self.step)
        if self._saving is None:  # A hook does it.
            return False
        checkpoint, stop = self._saving.save(self.step, at_start=at_start)
        if checkpoint is not None:
            self._runtime.store.mark(list(self._program.variables), checkpoint)
            self.events.flush()
            self._program.flush()
            _log.info("Saved %s.", checkpoint.prefix)
            if not at_start:
                self._tell(checkpoint)
        return stop

    def _tell(self, checkpoint: checkpoints.Checkpoint) -> None:
        if self._after_save is not None:
            with self._termination.nothing_to_lose():
                self._after_save(checkpoint)
            # An evaluation may have put averages in the place of variables.
            self._loader.restore(checkpoint)

"""Checkpoints of a training: when they are saved, and the listeners and evaluations that they trigger."""

import logging
from collections.abc import Sequence
from typing import Protocol

import tensorflow as tf

from tpudata.estimator.api.hook_lists import CheckpointSaverListener, SessionRunHook
from tpudata.estimator.config.run_config import DEFAULT
from tpudata.estimator.fetching.hook_session import HookSession
from tpudata.estimator.hooks.events import EventWriter
from tpudata.estimator.hooks.scaffold import ScaffoldLoader, save_with
from tpudata.estimator.loops.runtime import Runtime
from tpudata.estimator.loops.training.pace import Cadence
from tpudata.estimator.loops.training.termination import Termination
from tpudata.estimator.state import checkpoints
from tpudata.estimator.state.checkpoint import Checkpoint
from tpudata.estimator.state.checkpoints import Retention
from tpudata.estimator.state.claim import check_model_dir
from tpudata.estimator.steps.train_step import TrainStep
from tpudata.tensorflow_internals import eager_mode, replace_listeners

_log = logging.getLogger("tpudata")
_v1 = tf.compat.v1


class CheckpointFollower(Protocol):
    """Work after each checkpoint of a training: the evaluations of train_and_evaluate."""

    def after_save(self, checkpoint: Checkpoint) -> None:
        """Handle a written checkpoint; not called for the one at the start."""

    def finish(self) -> None:
        """Handle the last checkpoint if `after_save` did not; called before the hooks' `end`, as in TensorFlow's Estimator."""


class Checkpointing:
    """The checkpoints of one training, at the intervals of the RunConfig.

    If there is a CheckpointSaverHook, it writes them instead, at its intervals, and calls the listeners.

    Attributes:
        saves: whether checkpoints are written, by this object or by a hook.
        saves_by_hook: whether a hook writes them.

    Args:
        runtime: runtime of the training.
        step: step whose variables are saved.
        session: session of the run, for the listeners and the saver.
        loader: loader of the variables.
        events: event file, which is flushed with each checkpoint.
        start_checkpoint: checkpoint that training begins with, or None.
        saver: the scaffold's `tf.compat.v1.train.Saver`, which writes the files; or None.
        hooks: hooks of the training, including hooks that do not run in this process.
        listeners: `tf.compat.v1.train.CheckpointSaverListener`s.
        follower: work after each checkpoint; or None.
        termination: state of a requested termination.

    Raises:
        ValueError: no checkpoints are saved, and listeners or train_and_evaluate need them.
    """

    def __init__(
        self,
        runtime: Runtime,
        step: TrainStep,
        session: HookSession,
        loader: ScaffoldLoader,
        events: EventWriter,
        *,
        start_checkpoint: Checkpoint | None,
        saver: tf.compat.v1.train.Saver | None,
        hooks: Sequence[SessionRunHook],
        listeners: Sequence[CheckpointSaverListener],
        follower: CheckpointFollower | None,
        termination: Termination,
    ) -> None:
        config = runtime.config
        has_interval = config.save_checkpoints_steps is not None or config.save_checkpoints_secs is not None
        saver_hook = next((hook for hook in hooks if isinstance(hook, _v1.train.CheckpointSaverHook)), None)
        self.saves_by_hook = saver_hook is not None
        self.saves = self.saves_by_hook or has_interval
        if not self.saves and (listeners or follower is not None):
            raise ValueError(
                "RunConfig(save_checkpoints_steps=None, save_checkpoints_secs=None) saves nothing, so that saving_listeners and "
                "train_and_evaluate would wait forever. Set one of them, or pass a CheckpointSaverHook."
            )
        self._runtime = runtime
        self._step = step
        self._session = session
        self._loader = loader
        self._events = events
        self._saver = saver
        self._listeners = tuple(listeners)
        self._follower = follower
        self._termination = termination
        self._retention = Retention(config.keep_checkpoint_max, config.keep_checkpoint_every_n_hours)
        # `begin` replaces this cadence with one that starts where training does.
        self._cadence = Cadence(start_step=0)
        # Step of the last checkpoint; None if there is none.
        self._saved_step = None if start_checkpoint is None else start_checkpoint.read_step()
        self._writes_itself = has_interval and not self.saves_by_hook
        if self._writes_itself and saver is not None:
            # The saver only deletes checkpoints that it knows, so tell it those of earlier runs.
            saver.recover_last_checkpoints(checkpoints.list_recorded(runtime.model_dir))
        # Only the chief runs the hook.
        if saver_hook is not None and runtime.peers.is_chief:
            self._prepare_saver_hook(saver_hook)

    def _prepare_saver_hook(self, saver_hook: tf.compat.v1.train.CheckpointSaverHook) -> None:
        """Prepare the hook to write the checkpoints and to call the listeners."""
        follower = _HookFollower(self, self._runtime.model_dir, self._saved_step or 0)

        def add_listeners(listeners: Sequence[CheckpointSaverListener]) -> list[CheckpointSaverListener]:
            """Return the hook's listeners, followed by the listeners and the follower of this training."""
            # An earlier call with this hook may have added its follower, and the same listeners.
            other_listeners = [
                listener
                for listener in listeners
                if not isinstance(listener, _HookFollower) and listener not in self._listeners
            ]
            return [*other_listeners, *self._listeners, follower]

        replace_listeners(saver_hook, add_listeners)
        # A v1 Saver does not create its folder.
        tf.io.gfile.makedirs(self._runtime.model_dir)
        with self._session.record_additions():
            if not _v1.get_collection(_v1.GraphKeys.SAVERS):
                # A hook without a saver takes the one in this collection.
                saver = _v1.train.Saver(
                    max_to_keep=self._retention.keep_max,
                    keep_checkpoint_every_n_hours=self._retention.every_hours,
                    save_relative_paths=True,
                )
                _v1.add_to_collection(_v1.GraphKeys.SAVERS, saver)

    def begin_listeners(self) -> None:
        """Let the listeners add operations to the graph."""
        # A CheckpointSaverHook calls `begin` of its listeners itself.
        if self._writes_itself and self._listeners:
            with self._session.record_additions():
                for listener in self._listeners:
                    listener.begin()

    def begin(self, global_step: int) -> None:
        """Start the intervals at `global_step`, where training begins; save it if it has no checkpoint or there are listeners."""
        config = self._runtime.config
        assert config.save_checkpoints_secs is not DEFAULT  # RunConfig replaces it.
        self._cadence = Cadence(global_step, config.save_checkpoints_steps, config.save_checkpoints_secs)
        self.save(global_step, is_at_start=True)

    def find_next_step(self, global_step: int, step_seconds: float) -> int | None:
        """Return the step of the next checkpoint, estimated from the time of a step for intervals in seconds; None if unknown."""
        return self._cadence.find_next_step(global_step, step_seconds)

    def is_due(self, global_step: int) -> bool:
        """Return whether a checkpoint is due; intervals in seconds are measured with the chief's clock."""
        is_due = self._cadence.is_due(global_step)
        is_timed = self._runtime.config.save_checkpoints_secs is not None
        return bool(self._runtime.peers.broadcast_number(int(is_due))) if is_timed else is_due

    def save(self, global_step: int, *, is_at_start: bool = False) -> bool:
        """Write a checkpoint, and call the listeners and the follower.

        Nothing is written or called if a hook writes the checkpoints, or the RunConfig has no interval for them; or if this step
        has a checkpoint already, with the exception that `is_at_start` describes.

        Args:
            global_step: the step that is reached.
            is_at_start: whether no step was done yet. The follower is not called then; and if there are listeners, the checkpoint
                is written and they are called even if the step has a checkpoint already.

        Returns:
            Whether a listener requests the end of training.

        Raises:
            StorageError: the checkpoint could not be written; the previous one remains the newest.
            OutputError: another training has taken model_dir over.
        """
        self._cadence.restart(global_step)
        has_checkpoint = self._saved_step == global_step
        # Only the chief has listeners, and the other processes must take part in its checkpoint.
        calls_listeners_anyway = is_at_start and bool(self._runtime.peers.broadcast_number(int(bool(self._listeners))))
        if not self._writes_itself or (has_checkpoint and not calls_listeners_anyway):
            return False
        with self._session.as_default_graph():
            for listener in self._listeners:
                listener.before_save(self._session, global_step)
        checkpoint = self._write_checkpoint(global_step)
        self._saved_step = global_step
        with self._session.as_default_graph():
            stop_requests = [bool(listener.after_save(self._session, global_step)) for listener in self._listeners]
        # The variables have this checkpoint's values, so an evaluation in this process need not load them.
        self._runtime.store.set_source(list(self._step.variables), checkpoint)
        self._events.flush()
        self._step.flush()
        _log.info("Saved %s.", checkpoint.prefix)
        if not is_at_start:
            self.call_follower(checkpoint)
        return any(stop_requests)

    def _write_checkpoint(self, global_step: int) -> Checkpoint:
        """Return the checkpoint of a step, which the chief writes while the other processes wait."""
        peers, model_dir = self._runtime.peers, self._runtime.model_dir
        if not peers.is_chief:  # Receive what the chief sends below.
            return Checkpoint.from_bytes(peers.broadcast_bytes(b""))
        check_model_dir(model_dir)
        if self._saver is not None:
            checkpoint = save_with(self._saver, self._session, model_dir, global_step)
        else:
            self._step.copy_to_host(self._step.variables)
            checkpoint = checkpoints.save(model_dir, global_step, self._step.variables, self._retention)
        peers.broadcast_bytes(checkpoint.to_bytes())
        return checkpoint

    def call_follower(self, checkpoint: Checkpoint) -> None:
        """Call the follower, which evaluates, with a written checkpoint; then load the trained values again."""
        if self._follower is not None:
            with self._termination.exit_immediately():
                self._follower.after_save(checkpoint)
            # An evaluation may have replaced the values of variables, such as by averages.
            self._loader.restore(checkpoint)

    def end(self, global_step: int) -> None:
        """Save the last step, call the listeners' `end`, and let the follower finish, if this object writes the checkpoints."""
        self.save(global_step)
        if self._writes_itself:
            with self._session.as_default_graph():
                for listener in self._listeners:
                    listener.end(self._session, global_step)
            self.finish_follower()

    def finish_follower(self) -> None:
        """Let the follower handle the last checkpoint, unless SIGTERM ends the training."""
        if self._follower is None or self._termination.is_requested:
            return
        with self._termination.exit_immediately():
            self._follower.finish()
        newest = checkpoints.find_latest(self._runtime.model_dir)
        if newest is not None:
            # An evaluation may have replaced the variables' values; the hooks' `end` must see the trained ones.
            self._loader.restore(newest)


class _HookFollower(tf.compat.v1.train.CheckpointSaverListener):  # type: ignore[misc]  # TensorFlow is untyped
    """Listener of a CheckpointSaverHook. It calls the follower after each checkpoint except that of the start step, and at the end.

    Args:
        checkpointing: the checkpoints of the training.
        model_dir: folder of the checkpoints.
        start_step: global step at which training begins.
    """

    def __init__(self, checkpointing: Checkpointing, model_dir: str, start_step: int) -> None:
        self._checkpointing = checkpointing
        self._model_dir = model_dir
        self._start_step = start_step

    def after_save(self, session: tf.compat.v1.Session, global_step_value: int) -> None:
        """Call the follower with the new checkpoint, unless it is the one at the start."""
        del session
        checkpoint = checkpoints.find_latest(self._model_dir)
        if checkpoint is not None and global_step_value != self._start_step:
            with eager_mode():  # The hook calls from within a graph.
                self._checkpointing.call_follower(checkpoint)

    def end(self, session: tf.compat.v1.Session, global_step_value: int) -> None:
        """Let the follower handle the last checkpoint."""
        del session, global_step_value
        with eager_mode():  # As in `after_save`.
            self._checkpointing.finish_follower()

"""Checkpoints of a training: when they are saved, and what follows."""

import logging

from tpudata.estimator.hooks.events import EventWriter
from tpudata.estimator.hooks.saving import CheckpointFollower, Saving
from tpudata.estimator.hooks.scaffold import ScaffoldLoader
from tpudata.estimator.loops.runtime import Runtime
from tpudata.estimator.loops.training.pace import Cadence
from tpudata.estimator.loops.training.termination import Termination
from tpudata.estimator.state import checkpoints
from tpudata.estimator.state.checkpoint import Checkpoint
from tpudata.estimator.steps.train_step import TrainStep

_log = logging.getLogger("tpudata")


class Checkpointing:
    """The checkpoints of one training, at the intervals of the RunConfig.

    Attributes:
        saves: whether checkpoints are written, by a hook or by `saving`.
        by_hook: whether a hook writes them.

    Args:
        runtime: runtime of the training.
        step: step whose variables are saved.
        loader: loader of the variables.
        events: event file, which is flushed with each checkpoint.
        saving: writer of the checkpoints; None if a hook writes them, or nothing does.
        follower: what follows the checkpoints; or None.
        termination: state of a requested termination.
        saves: as the attribute.
    """

    def __init__(
        self,
        runtime: Runtime,
        step: TrainStep,
        loader: ScaffoldLoader,
        events: EventWriter,
        saving: Saving | None,
        follower: CheckpointFollower | None,
        termination: Termination,
        *,
        saves: bool,
    ) -> None:
        self.saves = saves
        self.by_hook = saves and saving is None
        self._runtime = runtime
        self._step = step
        self._loader = loader
        self._events = events
        self._saving = saving
        self._follower = follower
        self._termination = termination
        self._cadence = Cadence(0)

    def prepare(self) -> None:
        """Let listeners add operations to the graph."""
        if self._saving is not None:
            self._saving.begin()

    def begin(self, step: int) -> None:
        """Save at the first step of training, unless it has a checkpoint, and count intervals from there."""
        config = self._runtime.config
        seconds = config.save_checkpoints_secs
        seconds = seconds if isinstance(seconds, int | float) else None
        self._cadence = Cadence(step, config.save_checkpoints_steps, seconds)
        self.save(step, at_start=True)

    def next_step(self, step: int, step_seconds: float) -> int | None:
        """Return the step of the next checkpoint, estimated from the time of a step for intervals in seconds; None if unknown."""
        return self._cadence.next_step(step, step_seconds)

    def is_due(self, step: int) -> bool:
        """Return whether a checkpoint is due, by the chief's clock, as clocks differ."""
        due = self._cadence.due(step)
        is_timed = self._runtime.config.save_checkpoints_secs is not None
        return bool(self._runtime.peers.chiefs(int(due))) if is_timed else due

    def save(self, step: int, *, at_start: bool = False) -> bool:
        """Write a checkpoint, unless this step has one; return whether a listener requests the end of training."""
        self._cadence.restart(step)
        if self._saving is None:  # A hook does it.
            return False
        checkpoint, stop = self._saving.save(step, at_start=at_start)
        if checkpoint is not None:
            self._runtime.store.mark(list(self._step.variables), checkpoint)
            self._events.flush()
            self._step.flush()
            _log.info("Saved %s.", checkpoint.prefix)
            if not at_start:
                self.after_save(checkpoint)
        return stop

    def after_save(self, checkpoint: Checkpoint) -> None:
        """Call the follower with a written checkpoint."""
        if self._follower is not None:
            with self._termination.nothing_to_lose():
                self._follower.after_save(checkpoint)
            # An evaluation may have replaced the values of variables by averages.
            self._loader.restore(checkpoint)

    def finish(self) -> None:
        """Let the follower finish, unless SIGTERM ends the training."""
        if self._follower is None or self._termination.requested:
            return
        with self._termination.nothing_to_lose():
            self._follower.finish()
        newest = checkpoints.latest(self._runtime.model_dir)
        if newest is not None:  # The hooks' `end` sees the trained values.
            self._loader.restore(newest)

    def end(self, step: int) -> None:
        """Save the last step, and call the listeners' `end` and the follower's `finish`."""
        self.save(step)
        if self._saving is not None:
            self._saving.end(step)
            self.finish()

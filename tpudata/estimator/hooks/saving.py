"""Writing of a training's checkpoints, by the estimator, a scaffold's saver or a hook, and the listeners' calls."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import tensorflow as tf

from tpudata.devices.processes.peers import Peers
from tpudata.errors import StorageError
from tpudata.estimator.fetching.hook_session import HookSession
from tpudata.estimator.hooks.profiler import ProfilerHook
from tpudata.estimator.state import checkpoints
from tpudata.estimator.state.checkpoint import Checkpoint
from tpudata.estimator.state.checkpoints import Retention
from tpudata.estimator.state.claim import check_model_dir
from tpudata.estimator.state.host_copies import HostCopies
from tpudata.tensorflow_internals import eager_mode, replace_listeners

_train = tf.compat.v1.train


class CheckpointFollower(Protocol):
    """What follows the checkpoints of a training: the evaluations of train_and_evaluate."""

    def after_save(self, checkpoint: Checkpoint) -> None:
        """Follow a written checkpoint, except for the one at the start."""

    def finish(self) -> None:
        """Follow the last checkpoint, unless that is done. Called before the hooks' `end`, as in the original."""


class Saving:
    """Writer of checkpoints to model_dir, which calls the listeners.

    Args:
        model_dir: folder of the checkpoints.
        variables: variables of a checkpoint by name.
        copies: their copies on the host.
        retention: choice of the checkpoints to keep.
        session: session of the run, for the listeners.
        listeners: `tf.compat.v1.train.CheckpointSaverListener`s.
        saver: a `tf.compat.v1.train.Saver` that writes the checkpoints instead, or None.
        saved_step: step of the checkpoint that training starts from, or None.
        peers: the processes that train together. Only the chief writes; the others wait for it.
    """

    def __init__(
        self,
        model_dir: str,
        variables: Mapping[str, Any],
        copies: HostCopies,
        retention: Retention,
        session: HookSession,
        listeners: Sequence[Any],
        saver: Any,
        saved_step: int | None,
        peers: Peers,
    ) -> None:
        self._peers = peers
        self._model_dir = model_dir
        self._variables = variables
        self._copies = copies
        self._retention = retention
        self._session = session
        self._listeners = tuple(listeners)
        self._saver = saver
        self._saved_step = saved_step
        if saver is not None:
            # So that the saver later deletes checkpoints of earlier runs, too.
            saver.recover_last_checkpoints(checkpoints.known(model_dir))

    def begin(self) -> None:
        """Let the listeners add operations to the graph."""
        if self._listeners:
            with self._session.adding():
                for listener in self._listeners:
                    listener.begin()

    def save(self, step: int, *, at_start: bool = False) -> tuple[Checkpoint | None, bool]:
        """Write a checkpoint, unless this step has one.

        Args:
            step: the global step.
            at_start: whether no step was done yet; listeners are then called even if the step has a checkpoint.

        Returns:
            The checkpoint, or None; and whether a listener requests the end of training.

        Raises:
            StorageError: the checkpoint could not be written; the previous one remains the newest.
            OutputError: another training has taken model_dir over.
        """
        if self._saved_step == step and not (at_start and self._listeners):
            return None, False
        with self._session.installed():
            for listener in self._listeners:
                listener.before_save(self._session, step)
        checkpoint = self._written(step)
        self._saved_step = step
        with self._session.installed():
            stops = [bool(listener.after_save(self._session, step)) for listener in self._listeners]
        return checkpoint, any(stops)

    def end(self, step: int) -> None:
        """Call the listeners at the end of training."""
        with self._session.installed():
            for listener in self._listeners:
                listener.end(self._session, step)

    def _written(self, step: int) -> Checkpoint:
        """Return the checkpoint of a step, which the chief writes."""
        if self._peers.is_chief:
            check_model_dir(self._model_dir)
            checkpoint = self._write(step)
            self._peers.chiefs_bytes(checkpoint.to_bytes())
            return checkpoint
        return Checkpoint.from_bytes(self._peers.chiefs_bytes(b""))

    def _write(self, step: int) -> Checkpoint:
        if self._saver is None:
            self._copies.to_host(self._variables)
            return checkpoints.save(self._model_dir, step, self._variables, self._retention)
        base = tf.io.gfile.join(self._model_dir, "model.ckpt")
        try:
            tf.io.gfile.makedirs(self._model_dir)
            with self._session.installed():
                prefix = self._saver.save(self._session, base, global_step=step, write_meta_graph=False)
        except tf.errors.OpError as error:
            raise StorageError(
                f"the checkpoint {base}-{step} could not be written by the scaffold's saver: {error.message}. Provide space and "
                "permission, and run again."
            ) from error
        return Checkpoint.open(prefix)


def writes_files(hook: Any) -> bool:
    """Return whether a hook writes files, which only the chief of a cluster may do."""
    kinds = (
        _train.CheckpointSaverHook,
        _train.SummarySaverHook,
        _train.StepCounterHook,
        _train.ProfilerHook,
        ProfilerHook,
    )
    return isinstance(hook, kinds)


class _FollowerListener(tf.compat.v1.train.CheckpointSaverListener):  # type: ignore[misc]  # TensorFlow is untyped
    """Listener that calls a follower for each checkpoint except the one at the start, and at the end."""

    def __init__(self, model_dir: str, start: int, follower: CheckpointFollower) -> None:
        self._model_dir = model_dir
        self._start = start
        self._follower = follower

    def after_save(self, session: Any, global_step_value: int) -> None:
        del session
        checkpoint = checkpoints.latest(self._model_dir)
        if checkpoint is not None and global_step_value != self._start:
            with eager_mode():
                self._follower.after_save(checkpoint)

    def end(self, session: Any, global_step_value: int) -> None:
        del session, global_step_value
        with eager_mode():
            self._follower.finish()


def hand_over(
    hooks: Sequence[Any],
    session: HookSession,
    listeners: Sequence[Any],
    model_dir: str,
    retention: Retention,
    start: int,
    follower: CheckpointFollower,
) -> bool:
    """Prepare the CheckpointSaverHook among `hooks`, if there is one, to write the checkpoints and call the listeners.

    Returns:
        Whether there is one.
    """
    savers = [hook for hook in hooks if isinstance(hook, _train.CheckpointSaverHook)]
    if not savers:
        return False
    notifier = _FollowerListener(model_dir, start, follower)

    # The hook may have been used in another call, with other listeners.
    def with_ours(known: Sequence[Any]) -> list[Any]:
        own = [item for item in known if not isinstance(item, _FollowerListener) and item not in listeners]
        return [*own, *listeners, notifier]

    replace_listeners(savers[0], with_ours)
    tf.io.gfile.makedirs(model_dir)
    with session.adding():
        if not tf.compat.v1.get_collection(tf.compat.v1.GraphKeys.SAVERS):
            # The hook's default saver.
            saver = _train.Saver(
                max_to_keep=retention.keep_max,
                keep_checkpoint_every_n_hours=retention.every_hours,
                save_relative_paths=True,
            )
            tf.compat.v1.add_to_collection(tf.compat.v1.GraphKeys.SAVERS, saver)
    return True

"""Checkpoints of a folder: its state file, and the writing and deletion of checkpoints.

The state file `checkpoint` names the recorded ones and the newest of them, by paths relative to its folder, so that the folder can
be moved.
"""

import logging
import math
import time
import uuid
from collections.abc import Mapping, Sequence

import tensorflow as tf
from google.protobuf import text_format

from tpudata.devices.errors import ClusterError
from tpudata.devices.processes.peers import Peers
from tpudata.error_text.libraries import find_reason
from tpudata.error_text.lines import one_line
from tpudata.errors import StorageError
from tpudata.estimator.api.errors import SPACE_AND_PERMISSION, CheckpointError, CheckpointNotFoundError
from tpudata.estimator.state.checkpoint import Checkpoint

_log = logging.getLogger("tpudata")
_STATE_FILE = "checkpoint"


def find_latest(model_dir: str) -> Checkpoint | None:
    """Return the newest checkpoint of a folder, or None if it has no state file.

    Raises:
        CheckpointError: the state file is damaged, or names a checkpoint that does not exist; to start from step 0 then would lose
            the trained values.
        StorageError: the state file cannot be read.
    """
    prefixes = list_recorded(model_dir)
    if not prefixes:
        return None
    try:
        return Checkpoint.open(prefixes[-1])
    except CheckpointNotFoundError:
        current_prefixes = list_recorded(model_dir)
        # Another process may have written a new one and deleted this one in the meantime.
        if current_prefixes and current_prefixes[-1] != prefixes[-1]:
            return Checkpoint.open(current_prefixes[-1])
        raise CheckpointError(
            f"{_make_state_path(model_dir)} names {prefixes[-1]}, which does not exist. Restore its files, or name an older "
            "checkpoint in that file. To start from step 0, use another model_dir."
        ) from None


def find_chiefs_latest(model_dir: str, peers: Peers) -> Checkpoint | None:
    """Return the newest checkpoint of the chief's model_dir, with which training begins, or None.

    Args:
        model_dir: the folder.
        peers: the processes that train together.

    Raises:
        CheckpointError: the state file is damaged, or names a checkpoint that does not exist.
        StorageError: the state file cannot be read.
        ClusterError: this process does not find the chief's checkpoint in its model_dir.
    """
    chief_checkpoint = find_latest(model_dir) if peers.is_chief else None
    if peers.count == 1:
        return chief_checkpoint
    encoded = peers.broadcast_bytes(b"" if chief_checkpoint is None else chief_checkpoint.to_bytes())
    if peers.is_chief:
        return chief_checkpoint
    if not encoded:  # The chief has no checkpoint.
        return None
    expected = Checkpoint.from_bytes(encoded)
    try:
        local = Checkpoint.open(expected.prefix)
    except CheckpointError:
        local = None
    if local != expected:
        raise ClusterError(
            f"{model_dir}: the chief begins with {expected.prefix}, which is {'missing' if local is None else 'different'} for "
            "this process (expected one folder for all processes). Put model_dir on a storage that all machines share."
        )
    return local


def find_requested_or_latest(model_dir: str, path: str | None) -> Checkpoint | None:
    """Return the checkpoint at `path`; without a path the newest one of model_dir, or None if it has no checkpoint yet.

    Raises:
        CheckpointError: there is no checkpoint at the path, or its index cannot be read; or the state file is damaged, or names a
            checkpoint that does not exist.
        StorageError: the state file cannot be read.
    """
    if path is not None:
        return Checkpoint.open(str(path))
    newest = find_latest(model_dir)
    if newest is None:
        _log.warning("There is no checkpoint in %s: using initial values.", model_dir)
    return newest


def _make_state_path(model_dir: str) -> str:
    return str(tf.io.gfile.join(model_dir, _STATE_FILE))


def list_recorded(model_dir: str) -> list[str]:
    """Return the paths of the checkpoints that the state file names, the newest last; empty if there is no state file.

    Raises:
        CheckpointError: the state file is damaged.
        StorageError: the state file cannot be read.
    """
    path = _make_state_path(model_dir)
    try:
        with tf.io.gfile.GFile(path, "rb") as file:
            content = file.read()
    except tf.errors.NotFoundError:
        return []
    except tf.errors.OpError as error:
        raise StorageError(
            f"{path}, which names the newest checkpoint, could not be read: {find_reason(error)}. Check its permissions."
        ) from error
    # An empty proto of a type that TensorFlow does not publish.
    state = type(tf.compat.v1.train.generate_checkpoint_state_proto(".", "any", ["any"]))()
    try:
        text_format.Parse(content, state)
    except (text_format.ParseError, UnicodeDecodeError):
        state.Clear()  # Names no checkpoint, which is an error below.
    if not state.model_checkpoint_path:
        raise CheckpointError(
            f"{path} is damaged (expected a line such as 'model_checkpoint_path: \"model.ckpt-100\"'). Write such a line with "
            "the newest checkpoint into it. To start from step 0, use another model_dir."
        )
    newest = state.model_checkpoint_path
    prefixes = [*(prefix for prefix in state.all_model_checkpoint_paths if prefix != newest), newest]
    # gs:// paths are absolute, which `join` does not know.
    return [prefix if "://" in prefix else str(tf.io.gfile.join(model_dir, prefix)) for prefix in prefixes]


class Retention:
    """Choice of the checkpoints to keep, by the rules of v1's Saver.

    Args:
        keep_max: number of checkpoints; None or 0 for all.
        every_hours: interval in hours at which one more checkpoint is kept.
    """

    def __init__(self, keep_max: int | None, every_hours: float) -> None:
        self.keep_max = keep_max
        self.every_hours = every_hours
        # End of the current interval (time.time).
        self._next_time = time.time() + every_hours * 3600

    def select_oldest(self, paths: Sequence[str]) -> Sequence[str]:
        """Return the paths beyond the limit once one more checkpoint is written; `paths` has the oldest first."""
        return paths[: max(0, len(paths) + 1 - self.keep_max)] if self.keep_max else ()

    def keep_if_due(self, model_dir: str, path: str) -> bool:
        """Return whether to keep an old checkpoint for good: the first one written after the current interval.

        If so, the next interval begins.
        """
        if math.isinf(self._next_time):  # every_hours is infinite.
            return False
        try:
            written_at = tf.io.gfile.stat(tf.io.gfile.join(model_dir, f"{path}.index")).mtime_nsec / 1e9
        except tf.errors.OpError:  # Such as after another process has deleted it.
            return False
        if written_at <= self._next_time:
            return False
        self._next_time += self.every_hours * 3600
        return True


def save(model_dir: str, step: int, variables: Mapping[str, tf.Variable], retention: Retention) -> Checkpoint:
    """Write `model.ckpt-STEP`, make it the newest and delete old checkpoints.

    A checkpoint is valid once the state file names it. The state file is replaced in one piece.

    Args:
        model_dir: folder, local or gs://, which is created if needed.
        step: the global step.
        variables: variables by name.
        retention: choice of the checkpoints to keep.

    Returns:
        The checkpoint.

    Raises:
        StorageError: the state file could not be read, or the checkpoint not written; the state file still names the previous one.
        CheckpointError: the state file is damaged.
    """
    name = f"model.ckpt-{step}"
    prefix = tf.io.gfile.join(model_dir, name)
    tensors = [variable.read_value() for variable in variables.values()]
    recorded_paths = [_make_relative(model_dir, path) for path in list_recorded(model_dir)]
    # The state file already has `name` if this step is saved again.
    other_paths = [path for path in recorded_paths if path != name]
    last_path = tf.io.gfile.join(model_dir, other_paths[-1]) if other_paths else "none"
    oldest_paths = retention.select_oldest(other_paths)
    try:
        tf.io.gfile.makedirs(model_dir)
        with tf.device("CPU:0"):
            tf.raw_ops.SaveV2(
                prefix=prefix,
                tensor_names=list(variables),
                shape_and_slices=[""] * len(variables),
                tensors=tensors,
            )
        _write_state(model_dir, [*other_paths[len(oldest_paths) :], name])
    except tf.errors.OpError as error:
        raise StorageError(
            f"the checkpoint {prefix} could not be written: {find_reason(error)}. {SPACE_AND_PERMISSION} Training continues "
            f"from the last one, {last_path}."
        ) from error
    for path in oldest_paths:
        if not retention.keep_if_due(model_dir, path):
            _delete(model_dir, path)
    return Checkpoint.open(prefix)


def _make_relative(model_dir: str, path: str) -> str:
    """Return a path relative to model_dir; unchanged if it is in another folder."""
    return path.removeprefix(f"{model_dir.rstrip('/')}/")


def _write_state(model_dir: str, paths: list[str]) -> None:
    """Replace the state file with one that names `paths`, the newest last."""
    state = tf.compat.v1.train.generate_checkpoint_state_proto(".", paths[-1], paths)
    target = _make_state_path(model_dir)
    temporary = f"{target}.tmp-{uuid.uuid4().hex}"  # Unique, as another process may also write to the folder.
    with tf.io.gfile.GFile(temporary, "w") as file:
        file.write(str(state))
    tf.io.gfile.rename(temporary, target, overwrite=True)


def _delete(model_dir: str, path: str) -> None:
    """Delete the files of a checkpoint in model_dir.

    Args:
        model_dir: the folder.
        path: path of the checkpoint, relative to model_dir if it is in there.
    """
    if "/" in path:  # A checkpoint in another folder belongs to another program.
        return
    try:
        for name in tf.io.gfile.listdir(model_dir):
            if name.startswith(f"{path}."):
                tf.io.gfile.remove(tf.io.gfile.join(model_dir, name))
    except tf.errors.NotFoundError:
        pass  # Another process has deleted it.
    except tf.errors.OpError as error:
        _log.warning("The old checkpoint %s in %s could not be deleted: %s", path, model_dir, one_line(error.message))

"""Checkpoints in TensorFlow's name-based format, the one that v1 programs wrote.

`model.ckpt-STEP.index` and `.data-*` hold every variable under its graph name (`dense/kernel`, `dense/kernel/Momentum`,
`global_step`), so that `tf.train.load_checkpoint` lists them and checkpoints travel in both directions. The state file
`checkpoint` names the newest one, by paths relative to its folder, so that the folder can be moved.
"""

import dataclasses
import hashlib
import logging
import math
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf
from google.protobuf import text_format

from tpudata.console.nearest import did_you_mean
from tpudata.errors import StorageError
from tpudata.estimator.api.errors import CheckpointError, CheckpointNotFoundError, reason

_log = logging.getLogger("tpudata")
_GLOBAL_STEP = "global_step"
_STATE_FILE = "checkpoint"
# What TensorFlow's reader raises for damaged files, by what is damaged.
_READ_ERRORS = (tf.errors.OpError, ValueError, IndexError, RuntimeError)
_FIX = "Use another model_dir, or the model and the input size that wrote it."


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """One checkpoint, distinguished from another that was later written under its name.

    Attributes:
        prefix: path without the `.index` and `.data-*` endings.
        digest: of its index file, which holds a checksum of every variable. Times would not do: TensorFlow tells
            them to the second.
    """

    prefix: str
    digest: bytes

    @classmethod
    def open(cls, prefix: str) -> "Checkpoint":
        """Return the checkpoint at `prefix`.

        Raises:
            CheckpointError: there is none.
        """
        try:
            with tf.io.gfile.GFile(f"{prefix}.index", "rb") as file:
                return cls(prefix, hashlib.blake2b(file.read(), digest_size=16).digest())
        except tf.errors.NotFoundError:
            raise CheckpointNotFoundError(
                f"There is no checkpoint at {prefix}: {prefix}.index does not exist. Give a path as "
                "tf.train.latest_checkpoint returns it."
            ) from None

    @classmethod
    def from_bytes(cls, data: bytes) -> "Checkpoint":
        """Return the checkpoint that `to_bytes` describes."""
        return cls(data[16:].decode(), data[:16])

    def to_bytes(self) -> bytes:
        """Return bytes from which another process knows which checkpoint this is."""
        return self.digest + self.prefix.encode()

    def step(self) -> int:
        """Return its global step; 0 if it has none.

        Raises:
            CheckpointError: its files are damaged.
        """
        reader = self.reader()
        return int(read_tensor(reader, self.prefix, _GLOBAL_STEP)) if reader.has_tensor(_GLOBAL_STEP) else 0

    def reader(self) -> Any:
        """Return TensorFlow's reader of it.

        Raises:
            CheckpointError: its files are damaged.
        """
        try:
            return tf.train.load_checkpoint(self.prefix)
        except _READ_ERRORS as error:
            raise _damaged(self.prefix, error) from error

    def read(self, variables: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values (NumPy arrays) of `variables`, by name.

        Raises:
            CheckpointError: it lacks one of them or has it in another shape or dtype, or its files are damaged.
        """
        reader = self.reader()
        shapes = reader.get_variable_to_shape_map()
        dtypes = reader.get_variable_to_dtype_map()
        for name, variable in variables.items():
            if name not in shapes:
                raise CheckpointNotFoundError(
                    f"{self.prefix} lacks the variable {name!r} that model_fn makes.{did_you_mean(name, shapes)} It was written "
                    f"by another model. {_FIX}"
                )
            if not variable.shape.is_compatible_with(shapes[name]) or dtypes[name] != variable.dtype:
                raise CheckpointError(
                    f"{self.prefix} has the variable {name!r} as {dtypes[name].name}{tuple(shapes[name])}, model_fn "
                    f"makes it as {variable.dtype.name}{tuple(variable.shape)}. It was written by another model, or for "
                    f"inputs of another size. {_FIX}"
                )
        return {name: read_tensor(reader, self.prefix, name) for name in variables}


def read_tensor(reader: Any, prefix: str, name: str) -> Any:
    """Read one variable (NumPy) with TensorFlow's reader of the checkpoint at `prefix`.

    Raises:
        CheckpointError: its files are damaged.
    """
    try:
        return reader.get_tensor(name)
    except _READ_ERRORS as error:
        raise _damaged(prefix, error) from error


def _damaged(prefix: str, error: Exception) -> CheckpointError:
    return CheckpointError(
        f"{prefix} cannot be read: {error}. Restore its files, or give the path of an older checkpoint; to go on "
        f"training from that one, name it in the file {_STATE_FILE!r} of its folder."
    )


def latest(model_dir: str) -> Checkpoint | None:
    """Return the newest checkpoint of a folder, or None if its state file names none.

    Raises:
        CheckpointError: the state file is damaged, or names a checkpoint that is not there. To begin anew, as if there were none,
            would lose what was trained.
        StorageError: the state file cannot be read.
    """
    prefixes = known(model_dir)
    if not prefixes:
        return None
    try:
        return Checkpoint.open(prefixes[-1])
    except CheckpointError:
        newer = known(model_dir)
        # Another process may just have written one and deleted this one.
        if newer and newer[-1] != prefixes[-1]:
            return Checkpoint.open(newer[-1])
        raise CheckpointError(
            f"{_state_path(model_dir)} names {prefixes[-1]}, which is not there: restore its files, or name an older checkpoint in "
            "that file. To begin anew, use another model_dir."
        ) from None


def _state_path(model_dir: str) -> str:
    return str(tf.io.gfile.join(model_dir, _STATE_FILE))


def known(model_dir: str) -> list[str]:
    """Return the checkpoints that the state file names, the newest last; none if there is no state file."""
    path = _state_path(model_dir)
    try:
        with tf.io.gfile.GFile(path, "rb") as file:
            content = file.read()
    except tf.errors.NotFoundError:
        return []
    except tf.errors.OpError as error:
        raise StorageError(f"{path}, which names the newest checkpoint, could not be read: {reason(error)}") from error
    # TensorFlow does not publish the type.
    state = type(tf.compat.v1.train.generate_checkpoint_state_proto(".", "any", ["any"]))()
    try:
        text_format.Parse(content, state)
    except (text_format.ParseError, UnicodeDecodeError):
        state.Clear()
    if not state.model_checkpoint_path:
        raise CheckpointError(
            f"{path} is damaged: it must name the newest checkpoint, as in 'model_checkpoint_path: \"model.ckpt-100\"'. Write "
            "that into it. To begin anew, use another model_dir."
        )
    newest = state.model_checkpoint_path
    others = [item for item in state.all_model_checkpoint_paths if item != newest]
    return [item if "://" in item else str(tf.io.gfile.join(model_dir, item)) for item in [*others, newest]]


class Retention:
    """Choice of the checkpoints to keep, as v1's Saver makes it.

    Args:
        keep_max: how many; None or 0: all.
        every_hours: one in so many hours is kept in addition.
    """

    def __init__(self, keep_max: int | None, every_hours: float) -> None:
        self.keep_max = keep_max
        self.every_hours = every_hours
        self._next_time = time.time() + every_hours * 3600

    def surplus(self, paths: Sequence[str]) -> Sequence[str]:
        """Return those of `paths`, the oldest first, that one more checkpoint makes too many."""
        return paths[: max(0, len(paths) + 1 - self.keep_max)] if self.keep_max else ()

    def is_kept(self, model_dir: str, path: str) -> bool:
        """Return whether a surplus checkpoint stays because it is the one of its hours; it counts from now on."""
        if math.isinf(self._next_time):
            return False
        try:
            written = tf.io.gfile.stat(tf.io.gfile.join(model_dir, f"{path}.index")).mtime_nsec / 1e9
        except tf.errors.OpError:
            return False
        if written <= self._next_time:
            return False
        self._next_time += self.every_hours * 3600
        return True


def save(model_dir: str, step: int, variables: Mapping[str, Any], retention: Retention) -> Checkpoint:
    """Write `model.ckpt-STEP`, make it the newest and delete old ones.

    A checkpoint counts only once the state file names it, which is replaced in one piece.

    Args:
        model_dir: folder, local or gs://; made if it is missing.
        step: the global step.
        variables: by name.
        retention: which to keep.

    Returns:
        The checkpoint.

    Raises:
        StorageError: it could not be written; the state file names the one before.
    """
    base = f"model.ckpt-{step}"
    prefix = tf.io.gfile.join(model_dir, base)
    tensors = values_of(variables)
    kept = [path for path in (_relative(model_dir, path) for path in known(model_dir)) if path != base]
    last = tf.io.gfile.join(model_dir, kept[-1]) if kept else "none"
    surplus = retention.surplus(kept)
    try:
        tf.io.gfile.makedirs(model_dir)
        with tf.device("CPU:0"):
            tf.raw_ops.SaveV2(
                prefix=prefix,
                tensor_names=list(variables),
                shape_and_slices=[""] * len(variables),
                tensors=tensors,
            )
        _write_state(model_dir, [*kept[len(surplus) :], base])
    except tf.errors.OpError as error:
        raise StorageError(
            f"the checkpoint {prefix} could not be written: {reason(error)}. The last one is {last}; run again"
            " once there is room and permission, and training carries on from it."
        ) from error
    for path in surplus:
        if not retention.is_kept(model_dir, path):
            _delete(model_dir, path)
    return Checkpoint.open(prefix)


def values_of(variables: Mapping[str, Any]) -> list[Any]:
    """Return what a checkpoint holds of variables. In a cluster, all processes must ask: the mean of averages takes all of them."""
    return [variable.read_value() for variable in variables.values()]


def _relative(model_dir: str, path: str) -> str:
    prefix = model_dir.rstrip("/") + "/"
    return path.removeprefix(prefix)


def _write_state(model_dir: str, paths: list[str]) -> None:
    state = tf.compat.v1.train.generate_checkpoint_state_proto(".", paths[-1], paths)
    target = _state_path(model_dir)
    temporary = f"{target}.tmp-{uuid.uuid4().hex}"  # Its own: another process may write into the folder, too.
    with tf.io.gfile.GFile(temporary, "w") as file:
        file.write(str(state))
    tf.io.gfile.rename(temporary, target, overwrite=True)


def _delete(model_dir: str, path: str) -> None:
    """Delete the files of a checkpoint that lies in model_dir; one elsewhere was not written here."""
    if "/" in path:
        return
    try:
        for name in tf.io.gfile.listdir(model_dir):
            if name.startswith(f"{path}."):
                tf.io.gfile.remove(tf.io.gfile.join(model_dir, name))
    except tf.errors.NotFoundError:
        pass  # Another process was first.
    except tf.errors.OpError as error:
        _log.warning("The old checkpoint %s in %s could not be deleted: %s", path, model_dir, error.message)

"""One checkpoint in TensorFlow's name-based format, the one that v1 programs wrote.

`model.ckpt-STEP.index` and `.data-*` contain every variable under its graph name (`dense/kernel`, `dense/kernel/Momentum`,
`global_step`), so that `tf.train.load_checkpoint` lists them, and each program can read the other's checkpoints.
"""

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
import tensorflow as tf

from tpudata.console.nearest import did_you_mean
from tpudata.error_text.lines import first_line
from tpudata.estimator.api.errors import CheckpointError, CheckpointNotFoundError
from tpudata.estimator.state.partition import Part, select_part_of_whole
from tpudata.tensor_types import Array

_GLOBAL_STEP = "global_step"
_DIGEST_BYTES = 16
# Errors that TensorFlow's reader raises for damaged files.
_READ_ERRORS = (tf.errors.OpError, ValueError, IndexError, RuntimeError)
_FIX = "Use another model_dir, or the model and the input size that wrote it."


class CheckpointReader(Protocol):
    """TensorFlow's reader of a checkpoint, which `tf.train.load_checkpoint` returns."""

    def has_tensor(self, name: str) -> bool:
        """Return whether the checkpoint has a variable."""

    def get_tensor(self, name: str) -> Array:
        """Return the value of a variable."""

    def get_variable_to_shape_map(self) -> dict[str, list[int]]:
        """Return the shapes of the variables by name."""

    def get_variable_to_dtype_map(self) -> dict[str, tf.DType]:
        """Return the dtypes of the variables by name."""


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """One checkpoint. Two are equal if their paths and the contents of their index files are equal.

    Attributes:
        prefix: path without the `.index` and `.data-*` endings.
        digest: digest of the index file, which contains a checksum of every variable.
    """

    prefix: str
    digest: bytes

    @classmethod
    def open(cls, prefix: str) -> "Checkpoint":
        """Return the checkpoint at `prefix`.

        Raises:
            CheckpointError: there is no checkpoint, or its index cannot be read.
        """
        try:
            with tf.io.gfile.GFile(f"{prefix}.index", "rb") as file:
                return cls(prefix, hashlib.blake2b(file.read(), digest_size=_DIGEST_BYTES).digest())
        except tf.errors.NotFoundError:
            raise CheckpointNotFoundError(
                f"There is no checkpoint at {prefix}: {prefix}.index does not exist. Pass a path in the form that "
                "tf.train.latest_checkpoint returns."
            ) from None
        except tf.errors.OpError as error:
            raise _make_damage_error(prefix, error) from error

    @classmethod
    def from_bytes(cls, encoded: bytes) -> "Checkpoint":
        """Return the checkpoint that `to_bytes` encoded."""
        return cls(encoded[_DIGEST_BYTES:].decode(), encoded[:_DIGEST_BYTES])

    def to_bytes(self) -> bytes:
        """Return bytes that identify this checkpoint for another process."""
        return self.digest + self.prefix.encode()

    def read_step(self) -> int:
        """Return the global step; 0 if the checkpoint has none.

        Raises:
            CheckpointError: the files are damaged, or global_step is not one integer of 0 or more.
        """
        reader = self.open_reader()
        if not reader.has_tensor(_GLOBAL_STEP):
            return 0
        array = np.asarray(read_tensor(reader, self.prefix, _GLOBAL_STEP))
        if array.shape or not np.issubdtype(array.dtype, np.integer) or array < 0:
            text = f"{array.dtype.name}{array.shape}" if array.shape else f"{array.item()}"
            raise CheckpointError(
                f"{self.prefix}: global_step: not a step (got {text}, expected one integer of 0 or more). Another program wrote "
                "it: pass another checkpoint."
            )
        return int(array)

    def open_reader(self) -> CheckpointReader:
        """Return TensorFlow's reader of the checkpoint.

        Raises:
            CheckpointError: the files are damaged.
        """
        try:
            reader: CheckpointReader = tf.train.load_checkpoint(self.prefix)
        except _READ_ERRORS as error:
            raise _make_damage_error(self.prefix, error) from error
        return reader

    def read(self, variables: Mapping[str, tf.Variable], parts: Mapping[str, Part | None]) -> dict[str, Array]:
        """Return the values (NumPy arrays) of `variables`, by name.

        Args:
            variables: the variables.
            parts: for each variable by name, its slice of a partitioned variable; None for a variable that is not partitioned.

        Raises:
            CheckpointError: the checkpoint lacks a variable or has it with a different shape or dtype, or the files are damaged.
        """
        reader = self.open_reader()
        shapes = reader.get_variable_to_shape_map()
        dtypes = reader.get_variable_to_dtype_map()
        # By variable: its slice of a partitioned variable that the checkpoint stores whole; otherwise None.
        parts_of_wholes = {name: select_part_of_whole(name, parts.get(name), shapes) for name in variables}
        for name, variable in variables.items():
            part = parts_of_wholes[name]
            if part is not None:
                _check_whole(self.prefix, name, part, variable, shapes[part.full_name], dtypes[part.full_name])
                continue
            if name not in shapes:
                raise CheckpointNotFoundError(
                    f"{self.prefix} lacks the variable {name!r} that model_fn makes.{did_you_mean(name, shapes)} Another model "
                    f"wrote it. {_FIX}"
                )
            if not variable.shape.is_compatible_with(shapes[name]) or dtypes[name] != variable.dtype:
                raise CheckpointError(
                    f"{self.prefix} has the variable {name!r} as {dtypes[name].name}{tuple(shapes[name])}, model_fn "
                    f"makes it as {variable.dtype.name}{tuple(variable.shape)}. Another model wrote it, or the model had "
                    f"inputs of a different size. {_FIX}"
                )
        return {name: read_value(reader, self.prefix, name, part) for name, part in parts_of_wholes.items()}


def _check_whole(
    prefix: str, name: str, part: Part, variable: tf.Variable, shape: Sequence[int], dtype: tf.DType
) -> None:
    """Raise CheckpointError if a partitioned variable that the checkpoint stores whole differs from model_fn's in shape or dtype.

    Args:
        prefix: path of the checkpoint, for the message.
        name: name of `variable`, for the message.
        part: slice of the partitioned variable that `variable` holds.
        variable: the variable of model_fn that holds the slice.
        shape: shape of the partitioned variable in the checkpoint.
        dtype: dtype of the partitioned variable in the checkpoint.
    """
    if tuple(shape) != part.full_shape or dtype != variable.dtype:
        raise CheckpointError(
            f"{prefix} has the partitioned variable {part.full_name!r} as {dtype.name}{tuple(shape)}, model_fn makes it, with its "
            f"part {name!r}, as {variable.dtype.name}{part.full_shape}. Another model wrote it. {_FIX}"
        )


def read_value(reader: CheckpointReader, prefix: str, name: str, part: Part | None) -> Array:
    """Return the value (NumPy) of a variable.

    Args:
        reader: reader of the checkpoint.
        prefix: path of the checkpoint, for messages.
        name: name of the variable in the checkpoint; not used with a part.
        part: the variable's slice of a partitioned variable that the checkpoint stores whole; None if the checkpoint stores `name`.

    Raises:
        CheckpointError: the files are damaged.
    """
    if part is None:
        return read_tensor(reader, prefix, name)
    return part.slice_values(read_tensor(reader, prefix, part.full_name))


def read_tensor(reader: CheckpointReader, prefix: str, name: str) -> Array:
    """Return the value (NumPy) of a variable, from TensorFlow's reader of the checkpoint at `prefix`.

    Raises:
        CheckpointError: the files are damaged.
    """
    try:
        return reader.get_tensor(name)
    except _READ_ERRORS as error:
        raise _make_damage_error(prefix, error) from error


def _make_damage_error(prefix: str, error: Exception) -> CheckpointError:
    """Return the error about a checkpoint that TensorFlow cannot read."""
    return CheckpointError(
        f"{prefix} cannot be read: {first_line(error)}. Restore its files, or pass the path of an older checkpoint; to continue "
        "training from that one, name it in the file 'checkpoint' of its folder."
    )

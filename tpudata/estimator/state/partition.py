"""Parts of partitioned variables, as checkpoints of TensorFlow 1 contain them.

v1's Saver stores a partitioned variable whole, under its name. tpudata's checkpoints contain its parts, each under its own name.
Checkpoints of both forms can be read.
"""

import dataclasses
from collections.abc import Collection

import tensorflow as tf

from tpudata.tensor_types import Array
from tpudata.tensorflow_internals import find_slice_info


@dataclasses.dataclass(frozen=True)
class Part:
    """One variable's slice of a partitioned variable.

    Attributes:
        full_name: name of the partitioned variable.
        full_shape: shape of the partitioned variable.
        offset: index of the first value of the part along each axis.
        shape: shape of the part.
    """

    full_name: str
    full_shape: tuple[int, ...]
    offset: tuple[int, ...]
    shape: tuple[int, ...]

    @classmethod
    def from_variable(cls, variable: tf.Variable) -> "Part | None":
        """Return the slice that a v1 variable holds; None if the variable is not part of a partitioned variable."""
        slice_info = find_slice_info(variable)
        if slice_info is None:
            return None
        return cls(
            slice_info.full_name,
            tuple(slice_info.full_shape),
            tuple(slice_info.var_offset),
            tuple(slice_info.var_shape),
        )

    def slice_values(self, full_value: Array) -> Array:
        """Return this slice of the partitioned variable's value (NumPy)."""
        return full_value[
            tuple(slice(first, first + size) for first, size in zip(self.offset, self.shape, strict=True))
        ]


def select_part_of_whole(name: str, part: Part | None, stored_names: Collection[str]) -> Part | None:
    """Return `part` if a checkpoint stores the partitioned variable whole, under `part.full_name`; otherwise None.

    Args:
        name: name of the variable that holds the part, under which a checkpoint of the parts stores it.
        part: the part; None if the variable is not partitioned.
        stored_names: names of the variables in the checkpoint.
    """
    is_stored_whole = part is not None and name not in stored_names and part.full_name in stored_names
    return part if is_stored_whole else None

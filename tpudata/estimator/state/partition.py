"""Parts of partitioned variables, as checkpoints of the original contain them.

v1's Saver stores a partitioned variable whole, under its own name. Our checkpoints contain its parts, each under its name. Both are
read.
"""

import dataclasses
from collections.abc import Collection
from typing import Any

from tpudata.tensorflow_internals import save_slice_info


@dataclasses.dataclass(frozen=True)
class Part:
    """Place of a variable in a partitioned variable.

    Attributes:
        full_name: name of the partitioned variable.
        full_shape: its shape.
        offset: index of the first value of the part along each axis.
        shape: shape of the part.
    """

    full_name: str
    full_shape: tuple[int, ...]
    offset: tuple[int, ...]
    shape: tuple[int, ...]

    @classmethod
    def find(cls, variable: Any) -> "Part | None":
        """Return the place of a v1 variable; None if it is whole."""
        found = save_slice_info(variable)
        if found is None:
            return None
        return cls(found.full_name, tuple(found.full_shape), tuple(found.var_offset), tuple(found.var_shape))

    def slice_values(self, value: Any) -> Any:
        """Return the values of this part, given those (NumPy) of the partitioned variable."""
        return value[tuple(slice(first, first + size) for first, size in zip(self.offset, self.shape, strict=True))]


def find_whole_part(name: str, part: Part | None, stored: Collection[str]) -> Part | None:
    """Return the part if a checkpoint with the names `stored` has the partitioned variable whole, and not the part `name`."""
    return part if part is not None and name not in stored and part.full_name in stored else None

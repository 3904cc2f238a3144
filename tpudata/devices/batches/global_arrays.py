"""Global arrays of JAX, made from the parts of this process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy.typing as npt

from tpudata.tensor_types import Array

if TYPE_CHECKING:
    import jax
    from jax.sharding import NamedSharding


def make_global_array(
    shape: Sequence[int],
    dtype: npt.DTypeLike,
    sharding: NamedSharding,
    axis: int,
    make_part: Callable[[int, int], Array],
) -> jax.Array:
    """Return a global array that is sharded along one axis; each process makes the parts of its devices.

    On CPU devices the array may share the memory of the parts, so the parts must not be written to afterwards.

    Args:
        shape: global shape.
        dtype: NumPy dtype of the parts.
        sharding: the `jax.sharding.NamedSharding` that assigns a part to each device.
        axis: the sharded axis.
        make_part: function of the first and the stop index of a device's range on the axis that returns the device's NumPy array.
    """
    import jax

    def place(device_slices: tuple[slice, ...]) -> Array:
        first, stop, _ = device_slices[axis].indices(shape[axis])
        return make_part(first, stop)

    # One call of the runtime for all devices; `device_put` of each part takes three times as long.
    return jax.make_array_from_callback(tuple(shape), sharding, place, dtype=dtype)

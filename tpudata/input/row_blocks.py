"""Rows of a global batch that this process feeds, as the sharding of a JAX program divides them over devices."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from tpudata.console.tables import count_text
from tpudata.devices.batches.global_arrays import make_global_array
from tpudata.errors import UsageError
from tpudata.tensor_types import Array

if TYPE_CHECKING:
    import jax
    from jax.sharding import Mesh, NamedSharding


@dataclasses.dataclass(frozen=True)
class RowBlocks:
    """Division of a global batch into equal blocks of rows; this process reads one or more of them.

    A process reads several if the mesh mixes the devices of processes. Processes whose devices hold the same rows, as with a mesh
    axis for the model, read the same blocks.

    Attributes:
        mesh: the `jax.sharding.Mesh`.
        axes: its axes that divide the rows; empty if all devices get all rows.
        num_parts: number of parts into which the devices divide the rows. A block is a whole number of parts.
        indices: indices of this process's blocks.
        num_blocks: number of blocks.
    """

    mesh: Mesh
    axes: tuple[str, ...]
    num_parts: int
    indices: tuple[int, ...]
    num_blocks: int

    def place(self, name: str, blocks: Sequence[Array], axis: int) -> jax.Array:
        """Return the global array of a tensor, made of the blocks of rows that each process passes.

        Args:
            name: path of the tensor for messages.
            blocks: this process's blocks in their order, NumPy arrays that nobody writes to any more.
            axis: axis of the rows.

        Raises:
            UsageError: the devices cannot share the rows evenly.
        """
        import jax
        from jax.sharding import NamedSharding, PartitionSpec

        shape, rows_per_block = blocks[0].shape, blocks[0].shape[axis]
        total_rows = rows_per_block * self.num_blocks
        if total_rows % self.num_parts:
            raise UsageError(
                f"as_jax: {name} has {count_text(total_rows, 'row')} (expected a multiple of {self.num_parts}, into which"
                f" {self._divider} divides them). Choose another batch size, or drop the remainder."
            )

        def slice_rows(first: int, stop: int) -> Array:
            """Return the rows [first, stop) of the global array: one part, from the block that has it."""
            # A part lies in one block, since a block is a whole number of parts.
            block_index, first_in_block = divmod(first, rows_per_block)
            block_slice = slice(first_in_block, first_in_block + stop - first)
            return blocks[self.indices.index(block_index)][(slice(None),) * axis + (block_slice,)]

        sharding = NamedSharding(self.mesh, PartitionSpec(*[None] * axis, self.axes or None))
        dtype = jax.dtypes.canonicalize_dtype(blocks[0].dtype)
        return make_global_array((*shape[:axis], total_rows, *shape[axis + 1 :]), dtype, sharding, axis, slice_rows)

    def split(self, name: str, process_rows: Array, axis: int) -> list[Array]:
        """Return the blocks of an array that has all rows of this process.

        Args:
            name: path of the tensor for messages.
            process_rows: the array.
            axis: axis of the rows.

        Raises:
            UsageError: the rows are not equally many for each block.
        """
        count = len(self.indices)
        if process_rows.shape[axis] % count:
            raise UsageError(
                f"as_jax: {name} has {count_text(process_rows.shape[axis], 'row')} in this process (expected a multiple of"
                f" {count}). Choose another batch size, or drop the remainder."
            )
        return [process_rows] if count == 1 else np.split(process_rows, count, axis)

    def count_block_rows(self, batch_size: int) -> int:
        """Return the number of rows of one block of a global batch of `batch_size` rows.

        Raises:
            UsageError: the devices cannot share the batch evenly.
        """
        if batch_size % self.num_parts:
            raise UsageError(
                f"batch_size={batch_size}: it is the global batch's, and {self._divider} divides it into {self.num_parts} parts. "
                f"Pass a multiple of {self.num_parts}."
            )
        # A block is one or more whole parts.
        return batch_size // self.num_blocks

    @property
    def _divider(self) -> str:
        """The mesh axes that divide the rows, for messages."""
        return f"the mesh axis {self.axes[0]!r}" if len(self.axes) == 1 else f"the mesh axes {self.axes}"


def find_row_blocks(sharding: Mesh | NamedSharding | None, axis: str | None) -> RowBlocks:
    """Return how a sharding divides the rows of a batch.

    Args:
        sharding: a `jax.sharding.NamedSharding` whose spec names the axes of the rows; a `jax.sharding.Mesh`; None for all devices.
        axis: name of the mesh axis of the rows, for a mesh; None for "data", or the only axis.

    Raises:
        UsageError: `sharding` is neither of these classes or also divides other axes, `axis` does not fit it, or the mesh has no
            device of this process.
    """
    import jax
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    if sharding is None:
        sharding = Mesh(jax.devices(), (axis or "data",))
    if isinstance(sharding, NamedSharding):
        mesh, axes = sharding.mesh, _find_axes(sharding, axis)
    elif isinstance(sharding, Mesh):
        mesh, axes = sharding, (_find_axis(sharding, axis),)
    else:
        raise UsageError(
            f"as_jax: sharding is of a different kind (got {sharding!r}, expected a jax.sharding.Mesh or NamedSharding). Pass one."
        )
    if not mesh.local_devices:
        raise UsageError(
            f"as_jax: the mesh has no devices of this process (got those of others, expected some of {jax.local_devices()}). "
            "Call it in the processes of the mesh."
        )
    num_parts = math.prod(mesh.shape[name] for name in axes)
    row_sharding = NamedSharding(mesh, PartitionSpec(axes or None))
    # Lay out an array of one row for each part: the row of a device is a slice that begins at the index of its part.
    device_rows = row_sharding.addressable_devices_indices_map((num_parts,)).values()
    # Without axes there is one part, and all devices have copies of it.
    process_parts = {row_slice.indices(num_parts)[0] for (row_slice,) in device_rows} if axes else {0}
    # The largest blocks that have only parts of this process.
    sizes = range(1, len(process_parts) + 1)
    parts_per_block = max(size for size in sizes if num_parts % size == 0 and _form_blocks(process_parts, size))
    indices = tuple(sorted({part // parts_per_block for part in process_parts}))
    return RowBlocks(mesh, axes, num_parts, indices, num_parts // parts_per_block)


def _form_blocks(parts: set[int], parts_per_block: int) -> bool:
    """Return whether parts form whole blocks of `parts_per_block` neighbouring parts."""
    return len({part // parts_per_block for part in parts}) * parts_per_block == len(parts)


def _find_axis(mesh: Mesh, axis: str | None) -> str:
    """Return the mesh axis that divides the rows: `axis`, or the only one, or "data"; UsageError if it does not exist."""
    names = tuple(mesh.axis_names)
    if axis is None and len(names) == 1:
        return str(names[0])
    name = "data" if axis is None else axis
    if name not in names:
        raise UsageError(
            f"as_jax: the mesh has no axis {name!r} (got the axes {', '.join(map(repr, names))}). Pass axis=, the one that "
            "divides the rows."
        )
    return name


def _find_axes(sharding: NamedSharding, axis: str | None) -> tuple[str, ...]:
    """Return the mesh axes that divide the rows according to the spec of a NamedSharding; empty if none does.

    Raises:
        UsageError: the spec also divides other axes, or `axis` is passed.
    """
    # The spec has an entry for each axis of an array, first of all the rows. An empty spec means the same as (None,).
    rows_entry, *other_entries = tuple(sharding.spec) or (None,)
    if axis is not None or any(entry is not None for entry in other_entries):
        raise UsageError(
            f"as_jax: the spec of a NamedSharding must name only the axes of the rows (got {sharding.spec} and axis={axis!r}, "
            "expected such as PartitionSpec('data')). Omit the others; reshard the arrays in the program."
        )
    if rows_entry is None:
        return ()
    return (rows_entry,) if isinstance(rows_entry, str) else tuple(rows_entry)

"""Batches as global arrays of JAX, sharded over the devices of all processes."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import tensorflow as tf

from tpudata.devices.batches.prefetcher import Prefetcher
from tpudata.errors import FeatureError, MissingExtraError, UsageError
from tpudata.input.elements import name_leaves
from tpudata.input.input_fn import InputFn
from tpudata.input.numpy_batches import to_integer, translate_errors
from tpudata.input.row_blocks import RowBlocks, find_row_blocks
from tpudata.tensor_types import DeviceArrays, Element

if TYPE_CHECKING:
    from jax.sharding import Mesh, NamedSharding


def as_jax(
    input_fn: InputFn | tf.data.Dataset,
    batch_size: int | None = None,
    *,
    sharding: Mesh | NamedSharding | None = None,
    axis: str | None = None,
    start_step: int = 0,
    prefetch: int = 2,
) -> Prefetcher[tuple[Element, ...], DeviceArrays]:
    """Return an iterator over the batches of an input_fn as global `jax.Array`s, in their structure: (features, labels), ...

    A thread reads the next batches and sends them to the devices while the program computes. In a program of several processes,
    each reads only the rows of its devices, and the global batches are the same, in the same order, for any number of processes and
    devices. All processes must take the same number of batches; in evaluation all have equally many.

    dtypes are as `input_fn` yields them; a dataset's 64-bit numbers become 32-bit ones unless the program enables `jax_enable_x64`.
    With `Images(transpose=...)`, the rows are sharded along their axis.

    Closing the iterator with `close()`, or dropping it, ends the read-ahead.

    Args:
        input_fn: the function that `make_input_fn` returned, or a Mixture; or a `tf.data.Dataset` of this process's rows.
        batch_size: rows of the global batch; None with a dataset.
        sharding: a `jax.sharding.Mesh`, or a `NamedSharding` whose spec names the mesh axes that divide the rows, such as
            `PartitionSpec("data")`. Devices along the other axes get copies. None for all devices.
        axis: name of the mesh axis that divides the rows, for a mesh; None for "data", or the only axis.
        start_step: number of global batches to skip.
        prefetch: number of batches on the devices that wait to be taken.

    Raises:
        UsageError: an argument is out of range or does not fit the others, or the devices cannot share the batch evenly.
        FeatureError: a tensor is not numeric or has no rows; a record does not match the dataset.
        CorruptionError: a record is damaged.
        StorageError: a file cannot be read.
        MissingExtraError: jax is not installed.

    Errors of records are raised while iterating; with `filter`, buckets or a cache in a folder, when this function is called,
    since it reads all records.
    """
    if importlib.util.find_spec("jax") is None:
        raise MissingExtraError("tpudata.as_jax", "tpu")
    import jax

    ahead = to_integer("prefetch", prefetch, 1)
    blocks = find_row_blocks(sharding, axis)
    datasets = _make_datasets(input_fn, batch_size, start_step, blocks)
    leaves = _list_leaves(datasets[0].element_spec)
    row_axes = [input_fn.find_row_axis(*leaf) if isinstance(input_fn, InputFn) else 0 for leaf in leaves]
    # The thread has the program's options, but not the options of a context manager around the call.
    uses_x64 = jax.config.jax_enable_x64

    def read() -> Iterator[tuple[Element, ...]]:
        """Yield an element of each dataset for each global batch."""
        with translate_errors():
            yield from tf.data.Dataset.zip(tuple(datasets))

    def place(batches: tuple[Element, ...]) -> DeviceArrays:
        """Return a global batch on the devices, from this process's element of each dataset."""
        global_arrays = []
        # For each leaf, its tensors from all datasets.
        tensors_of_leaves = zip(*map(tf.nest.flatten, batches), strict=True)
        with jax.enable_x64(uses_x64), jax.profiler.TraceAnnotation("tpudata: place a batch"):
            for (name, _), row_axis, tensors in zip(leaves, row_axes, tensors_of_leaves, strict=True):
                arrays = [np.asarray(tensor) for tensor in tensors]
                # The caller's own dataset has all blocks of this process in one tensor.
                if len(arrays) < len(blocks.indices):
                    arrays = blocks.split(name, arrays[0], row_axis)
                global_arrays.append(blocks.place(name, arrays, row_axis))
        return tf.nest.pack_sequence_as(batches[0], global_arrays)

    return Prefetcher(read, place, ahead=ahead, name="tpudata-batches")


def _make_datasets(
    input_fn: InputFn | tf.data.Dataset, batch_size: int | None, start_step: int, blocks: RowBlocks
) -> list[tf.data.Dataset]:
    """Return the dataset of each of this process's blocks of rows; or only the caller's own dataset, which has all blocks.

    Args:
        input_fn: an input_fn, or the caller's own dataset.
        batch_size: rows of the global batch; None with a dataset.
        start_step: number of global batches to skip.
        blocks: division of the rows over the devices.

    Raises:
        UsageError: `input_fn` is neither callable nor a dataset, or another argument does not fit it.
    """
    if isinstance(input_fn, tf.data.Dataset):
        if (batch_size, start_step) != (None, 0):
            raise UsageError(
                "as_jax: the batches of a dataset are used unchanged. Omit batch_size and start_step, or pass an input_fn."
            )
        return [input_fn]
    if not callable(input_fn):
        raise UsageError(f"as_jax: not an input_fn (got {input_fn!r}). Pass the result of make_input_fn.")
    import jax

    feeds_alone = isinstance(input_fn, InputFn) and jax.process_count() == 1
    call = input_fn.call_in_one_process if feeds_alone else input_fn
    params = {"batch_size": blocks.count_block_rows(to_integer("batch_size", batch_size, 1))}
    # With `filter`, buckets or a cache in a folder, the first call reads all records.
    with translate_errors():
        return [
            call(
                params,
                # Each block is fed like the rows of a host with one replica.
                input_context=tf.distribute.InputContext(
                    num_input_pipelines=blocks.num_blocks,
                    input_pipeline_id=index,
                    num_replicas_in_sync=blocks.num_blocks,
                ),
                start_step=start_step,
            )
            for index in blocks.indices
        ]


def _list_leaves(spec: Element) -> list[tuple[str, tf.TensorSpec]]:
    """Return the path, such as "features['image']", and the spec of each tensor of a batch, in the order of tf.nest.

    Raises:
        FeatureError: JAX has no arrays for a tensor, or a tensor has no rows.
    """
    parts = spec if isinstance(spec, tuple) else (spec,)
    part_names = ("features", "labels", "weights", *(f"part {index}" for index in range(3, len(parts))))
    # More names than parts, if the batch has fewer than three.
    leaves = [leaf for name, part in zip(part_names, parts, strict=False) for leaf in name_leaves(part, name)]
    for name, leaf in leaves:
        if not isinstance(leaf, tf.TensorSpec) or leaf.dtype in (tf.string, tf.variant, tf.resource):
            raise FeatureError(
                f"as_jax: {name} has no numbers in a dense tensor (got {leaf}, expected a tf.Tensor of numbers or bools). "
                "Omit it, or turn it into one."
            )
        if leaf.shape.rank == 0:
            raise FeatureError(f"as_jax: {name} has no rows (got a scalar, expected rows). Batch the dataset.")
    return leaves

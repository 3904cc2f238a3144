"""Choice of an input_fn's cache from the argument `cache`."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from tpudata.error_text.values import format_value
from tpudata.errors import UsageError
from tpudata.format.manifest.manifest import MANIFEST_NAME
from tpudata.input.graph.caches.cache import Cache, MemoryCache
from tpudata.input.graph.caches.decoded_cache import DecodedCache, digest_records
from tpudata.input.graph.caches.piece_cache import PieceCache
from tpudata.input.graph.reading.free_memory import MEMORY_SHARE, measure_free_memory
from tpudata.input.graph.reading.read_plan import ReadPlan
from tpudata.input.request import InputRequest

# Share of free memory that "auto" may use.
_AUTO_SHARE = 0.25


def choose_cache(cache: bool | str | os.PathLike[str], request: InputRequest, plan: ReadPlan) -> Cache:
    """Return the cache of a split's records.

    Args:
        cache: False, True (memory), "auto" (memory if the records take at most a quarter of the free memory) or the path of
            a local folder, which keeps decoded records, or stored pieces if records are read in pieces.
        request: data and options of the input_fn.
        plan: plan of reading the split.

    Raises:
        UsageError: the records do not fit, or `cache` is invalid.
        DatasetError: the folder has a cache of these records, and its files are damaged.
    """
    if not isinstance(cache, (bool, str, os.PathLike)) or cache == "":
        raise UsageError(
            f'cache: invalid value (got {format_value(cache)}, expected False, True, "auto" or the path of a local folder).'
        )
    if cache is False:
        return Cache()
    fields, dataset, split = request.fields, request.files.dataset, request.files.split
    decoded_bytes = plan.split.records * fields.estimate_record_bytes(plan.sizes.mean)
    if cache is True or cache == "auto":
        return choose_memory_cache(split, decoded_bytes, measure_free_memory(), is_optional=cache == "auto")
    folder = os.fspath(cache)
    if "://" in folder:
        raise UsageError(f"cache={folder!r}: the cache is kept on a local disk. Pass a local folder.")
    path = Path(folder).absolute()
    # The folder itself, or the closest of its parents that exists.
    existing_folder = next(parent for parent in (path, *path.parents) if parent.exists())
    if not existing_folder.is_dir():
        raise UsageError(f"cache={folder!r}: {existing_folder} is not a folder. Pass a local folder.")
    # A cache is named like a shard: `train-*` and `verify` would find it among the dataset's files.
    if Path(path, MANIFEST_NAME).exists():
        raise UsageError(f"cache={folder!r}: it is the folder of a dataset. Pass another one, such as {folder}.cache.")
    if plan.pieces is not None:
        # The workers of a tf.data service have separate disks.
        is_read_elsewhere = request.options.service is not None
        return PieceCache(folder, f"{split}-{digest_records(dataset, plan.split)}", is_read_elsewhere=is_read_elsewhere)
    decoded = DecodedCache(folder, f"{split}-{digest_records(dataset, plan.split, fields)}", plan, fields)
    free_bytes = shutil.disk_usage(existing_folder).free
    if decoded.load() is None and decoded_bytes > free_bytes:
        raise UsageError(
            f"cache={folder!r}: the decoded records of {split!r} take {_format_gb(decoded_bytes)}, and {_format_gb(free_bytes)} are"
            " free there. Pass a folder on a larger disk, or a smaller images=Images(size=...)."
        )
    return decoded


def choose_memory_cache(split: str, decoded_bytes: int, free_memory: int | None, *, is_optional: bool) -> Cache:
    """Return the cache in memory for the records of a split, or one that keeps nothing if it is optional and they do not fit.

    Args:
        split: name of the split, for the message.
        decoded_bytes: size of the decoded records.
        free_memory: free memory in bytes; None if unknown.
        is_optional: whether records are cached only if they take at most a quarter of the free memory, as with "auto".

    Raises:
        UsageError: the records do not fit, and the cache is not optional.
    """
    # If the free memory is unknown, "auto" keeps nothing; True is what the user asked for.
    if is_optional:
        return MemoryCache() if free_memory is not None and decoded_bytes <= _AUTO_SHARE * free_memory else Cache()
    if free_memory is None or decoded_bytes <= MEMORY_SHARE * free_memory:
        return MemoryCache()
    raise UsageError(
        f"cache=True: the decoded records of {split!r} take {_format_gb(decoded_bytes)}, more than {MEMORY_SHARE:.0%} of the free"
        f' memory of {_format_gb(free_memory)}. Pass a folder as cache=PATH to keep them on disk, cache="auto", or a smaller'
        " images=Images(size=...)."
    )


def _format_gb(size: int) -> str:
    return f"{size / 1e9:.3g} GB"

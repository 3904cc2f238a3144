"""Cache of decoded records: in memory, in files, or none."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy.typing as npt

from tpudata._version import __version__
from tpudata.errors import CorruptionError, DatasetError, StorageError, UsageError
from tpudata.format import (
    Dataset,
    Feature,
    Manifest,
    Source,
    Split,
    encode_example,
    open_dataset,
    shard_name,
    write_metadata,
    write_shard,
)
from tpudata.format.manifest.manifest import MANIFEST_NAME
from tpudata.input.dataset.fields import Field, Fields
from tpudata.input.files.shards import check_shards
from tpudata.storage import storage_for

# Share of free memory that "auto" may use for the cache, and the limit for True: while records are concatenated, they are in
# memory twice.
AUTO_SHARE = 0.25
MEMORY_SHARE = 0.4
CACHE_SPLIT = "records"
_LAYOUT = "raw"
_MEMINFO = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")


@dataclasses.dataclass(frozen=True)
class CachePlan:
    """Place of decoded records, or of stored ones.

    In a folder they are a dataset, `folder/name`: the same records in the same number of shards, each an Example of raw bytes; or,
    of an object store, pieces as they are stored, see PieceCache.

    Attributes:
        folder: None for memory, otherwise the folder of caches.
        name: name of the dataset there, a digest of the records, so that no cache serves other records.
        has_pieces: whether a folder keeps stored records in pieces.
    """

    folder: str | None
    name: str
    has_pieces: bool = False

    @property
    def path(self) -> str:
        """Folder of the dataset."""
        return str(Path(self.folder or "", self.name))

    def load(self) -> Dataset | None:
        """Return the dataset of a complete cache, or None if there is none.

        Raises:
            DatasetError: a file is missing (CorruptionError: or damaged).
        """
        if self.folder is None or storage_for(self.path).stat(str(Path(self.path, MANIFEST_NAME))) is None:
            return None
        try:
            dataset = open_dataset(self.path)
            check_shards(dataset, CACHE_SPLIT)
            for shard in dataset.manifest.split(CACHE_SPLIT).shards:
                dataset.index(shard)
        except CorruptionError as error:
            reason = error.reason.partition(". Restore it")[0]
            raise CorruptionError(error.path, error.offset, f"{reason}. {self._fix}") from None
        except (DatasetError, StorageError) as error:
            reason = str(error).partition(". Restore it")[0].rstrip(".")
            raise DatasetError(f"cache={self.folder!r}: {reason}. {self._fix}") from None
        return dataset

    def fill(self, parts: Iterable[Mapping[str, npt.NDArray[Any]]], split: Split, fields: Fields) -> Dataset:
        """Write all records of a split and return them as a dataset.

        Args:
            parts: columns of neighbouring records, in order.
            split: the split.
            fields: fields of the columns.

        Raises:
            StorageError: a file cannot be written.
        """
        records = (record for part in parts for record in _encoded(part, fields))
        count = len(split.shards)
        shards = [
            write_shard(self.path, shard_name(CACHE_SPLIT, number, count), itertools.islice(records, shard.records))
            for number, shard in enumerate(split.shards)
        ]
        manifest = Manifest(
            layout=_LAYOUT,
            splits={CACHE_SPLIT: Split(tuple(shards))},
            features=tuple(field.feature for field in self.stored(fields).all),
            source=Source("cache", split.records, split.bytes, self.name),
            created_by=__version__,
        )
        write_metadata(self.path, manifest)
        return Dataset(self.path, manifest)

    def stored(self, fields: Fields) -> Fields:
        """Return fields as the cache has them."""
        label = None if fields.label is None else _stored(fields.label)
        weight = None if fields.weight is None else _stored(fields.weight)
        return Fields(tuple(_stored(field) for field in fields.inputs), label, weight)

    @property
    def _fix(self) -> str:
        return f"Delete the folder {self.path}; it is made again."


def _stored(field: Field) -> Field:
    name = field.feature.name
    if field.bytes is None:
        return Field(Feature(name, "bytes", "string", field.shape), field.name, field.shape)
    return Field(Feature(name, "bytes", field.dtype, field.shape, "raw"), field.name, field.shape)


def _encoded(part: Mapping[str, npt.NDArray[Any]], fields: Fields) -> Iterator[bytes]:
    """Yield the Examples of records in columns."""
    names = [field.feature.name for field in fields.all]
    for values in zip(*(part[name] for name in names), strict=True):
        yield encode_example({name: _stored_value(value) for name, value in zip(names, values, strict=True)})


def _stored_value(value: Any) -> Any:
    """Return a string or strings as they are, and other values as their bytes."""
    if isinstance(value, bytes):
        return value
    return value.ravel().tolist() if value.dtype == object else value.tobytes()


def plan_cache(
    cache: bool | str | os.PathLike[str],
    dataset: Dataset,
    split_name: str,
    fields: Fields,
    *,
    is_read_in_pieces: bool = False,
) -> CachePlan | None:
    """Decide whether and where to keep the decoded records of a split.

    Args:
        cache: False, True (memory), "auto" (memory if they take at most a quarter of free memory) or the path of a local
            folder.
        dataset: the dataset.
        split_name: the split's name.
        fields: fields that are read of each record.
        is_read_in_pieces: whether the split is read in pieces, which a folder then keeps.

    Returns:
        The plan, or None for no cache.

    Raises:
        UsageError: the records do not fit, or `cache` is invalid.
        DatasetError: the files of an earlier cache there are damaged.
    """
    if not isinstance(cache, (bool, str, os.PathLike)) or cache == "":
        raise UsageError(
            f'cache: invalid value (got {cache!r}, expected False, True, "auto" or the path of a local folder).'
        )
    if cache is False:
        return None
    split = dataset.kept(split_name)
    size = split.records * fields.record_bytes(split)
    name = f"{split_name}-{_digest(dataset, split, fields)}"
    if cache is True or cache == "auto":
        free = free_memory()
        share = MEMORY_SHARE if cache is True else AUTO_SHARE
        if free is not None and size <= share * free:
            return CachePlan(None, name)
        if cache == "auto":
            return None
        if free is None:
            return CachePlan(None, name)
        raise UsageError(
            f"cache=True: the decoded records of {split_name!r} take {_gb(size)}, more than {share:.0%} of the free memory"
            f' of {_gb(free)}. Pass a folder as cache=PATH to keep them on disk, cache="auto", or a smaller image_size.'
        )
    cache = os.fspath(cache)
    if "://" in cache:
        raise UsageError(f"cache={cache!r}: the cache is kept on a local disk. Pass a local folder.")
    existing = next(path for path in (Path(cache).absolute(), *Path(cache).absolute().parents) if path.exists())
    if not existing.is_dir():
        raise UsageError(f"cache={cache!r}: {existing} is not a folder. Pass a local folder.")
    if is_read_in_pieces:
        return CachePlan(cache, f"{split_name}-{_digest(dataset, split)}", has_pieces=True)
    plan = CachePlan(cache, name)
    if plan.load() is None:
        free = shutil.disk_usage(existing).free
        if size > free:
            raise UsageError(
                f"cache={cache!r}: the decoded records of {split_name!r} take {_gb(size)}, and {_gb(free)} are free there."
                " Pass a folder on a larger disk, or a smaller image_size."
            )
    return plan


def free_memory() -> int | None:
    """Return the memory in bytes that this process may still use, or None if unknown.

    This is the smaller of the machine's available memory and the rest of the container's limit (cgroup version 2).
    """
    found = []
    try:
        lines = dict(line.split(":", 1) for line in _MEMINFO.read_text().splitlines())
        found.append(int(lines["MemAvailable"].split()[0]) * 1024)
    except (OSError, KeyError, ValueError):
        names = os.sysconf_names
        if "SC_AVPHYS_PAGES" in names and "SC_PAGE_SIZE" in names:
            found.append(os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    try:
        limit = int((_CGROUP / "memory.max").read_text())
        found.append(max(0, limit - int((_CGROUP / "memory.current").read_text())))
    except (OSError, ValueError):
        pass  # No cgroup version 2 here, or "max": no limit.
    return min(found, default=None)


def _digest(dataset: Dataset, split: Split, fields: Fields | None = None) -> str:
    """Return a digest of the records' bytes, and of the decoded fields if there are any."""
    skipped = {name: shard.records for name, shard in dataset.quarantine.shards.items()}
    records = [(shard.name, shard.records, shard.crc32c, skipped.get(shard.name)) for shard in split.shards]
    decoded = [] if fields is None else [_decoding(field) for field in fields.all]
    return hashlib.sha256(repr((records, decoded)).encode()).hexdigest()[:16]


def _decoding(field: Field) -> tuple[Any, ...]:
    """Return what a decoded value follows from; for a list, other parts, so that other caches keep their names."""
    padding = () if field.padding is None else (field.padding.table, field.padding.value)
    counts = () if field.counts is None else (field.counts,)
    classes = ("classes",) if field.is_multi_hot else ()
    default = () if field.default is None else ("default", field.default)
    return field.feature, field.shape, field.cuts, *padding, *counts, *classes, *default


def _gb(size: int) -> str:
    return f"{size / 1e9:.3g} GB"

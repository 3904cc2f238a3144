"""Whether decoded records are kept, and where: in memory, in files, or not at all."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Protocol, cast

import numpy as np
import numpy.typing as npt

from tpudata.errors import CorruptionError, DatasetError, StorageError, UsageError
from tpudata.format import Split
from tpudata.input.dataset.fields import Fields
from tpudata.input.source import Columns
from tpudata.tables import counted

# Of the free memory: what "auto" takes for the cache without being told to, and the most that True may take. The rest is
# for the model, the shuffle window and the batches on their way.
AUTO_SHARE = 0.25
MEMORY_SHARE = 0.8
# What Python adds to a string.
_STRING_BYTES = 41
_MEMINFO = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")


class Column(Protocol):
    """A value of every record."""

    def __getitem__(self, ids: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
        """The values of some records, [len(ids), ...]."""


class StringColumn:
    """Strings in a file, as `Column`.

    Args:
        ends: int64 [records]: where each string ends.
        data: all strings, one behind the other, uint8.
    """

    def __init__(self, ends: npt.NDArray[np.int64], data: npt.NDArray[np.uint8]) -> None:
        self._ends = ends
        self._data = data

    def __getitem__(self, ids: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
        """Strings as an array of bytes objects."""
        ends = self._ends[ids]
        begins = np.where(ids > 0, self._ends[np.maximum(ids - 1, 0)], 0)
        strings = np.empty(len(ids), object)
        for place, (begin, end) in enumerate(zip(begins.tolist(), ends.tolist(), strict=True)):
            strings[place] = self._data[begin:end].tobytes()
        return strings


@dataclasses.dataclass(frozen=True)
class CachePlan:
    """Where decoded records are kept: an array for each feature.

    Attributes:
        folder: None for memory, otherwise the folder of the cache's files.
        name: start of the files' names there; another one for other records, so that no cache is read for what it is not.
        records: how many there are.
    """

    folder: str | None
    name: str
    records: int

    def load(self) -> Mapping[str, Column] | None:
        """The columns that the folder holds, which stay on disk, or None where they are not there or not complete.

        Raises:
            DatasetError: a file is missing (or of another size than it was: CorruptionError), or the note about them is damaged.
        """
        if self.folder is None:
            return None
        mend = f"Delete the folder {self.folder}; it is made again."
        try:
            note = json.loads(self._note.read_bytes())
            sizes = {str(name): int(size) for name, size in note["sizes"].items()}
            names = [str(name) for name in note["columns"]]
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError, TypeError, AttributeError, KeyError):
            raise DatasetError(f"cache={self.folder!r}: {self._note} cannot be read. {mend}") from None
        for name, size in sizes.items():
            path = Path(self.folder, name)
            if not path.is_file():
                raise DatasetError(f"cache={self.folder!r}: {path} is missing. {mend}")
            found = path.stat().st_size
            if found != size:
                raise CorruptionError(
                    str(path),
                    min(found, size),
                    f"the cached records are damaged: the file has {found} bytes and had {size} when it"
                    f" was complete. {mend}",
                )
        try:
            columns = {name: self._opened(number) for number, name in enumerate(names)}
        except Exception as error:  # numpy has an array's header parsed as Python, which fails in many ways.
            raise DatasetError(
                f"cache={self.folder!r}: an array cannot be read: {str(error).rstrip('.')}. {mend}"
            ) from None
        return columns

    def fill(self, parts: Iterable[Columns]) -> Mapping[str, Column]:
        """Keeps the columns of all records, which come in parts, in order; returns them as they are kept.

        Raises:
            StorageError: a file cannot be written.
        """
        if self.folder is None:
            return self._in_memory(parts)
        try:
            self._write(parts)
        except OSError as error:
            raise StorageError(f"cache={self.folder!r} could not be written: {error.strerror or error}.") from None
        columns = self.load()
        assert columns is not None
        return columns

    @property
    def _note(self) -> Path:
        """Written last: a folder that has it holds all."""
        return Path(self.folder or "", f"{self.name}.json")

    def _path(self, number: int, kind: str) -> Path:
        return Path(self.folder or "", f"{self.name}.{number}.{kind}")

    def _opened(self, number: int) -> Column:
        path = self._path(number, "npy")
        values = np.load(path, mmap_mode="r")
        if len(values) != self.records:
            raise ValueError(
                f"{path} has {counted(len(values), 'row')}, and there are {counted(self.records, 'record')}"
            )
        strings = self._path(number, "strings")
        if not strings.exists():
            return cast(Column, values)
        # An empty file cannot be mapped.
        data = np.memmap(strings, np.uint8, "r") if strings.stat().st_size else np.empty(0, np.uint8)
        return StringColumn(values, data)

    def _in_memory(self, parts: Iterable[Columns]) -> Mapping[str, Column]:
        columns: Columns = {}
        place = 0
        for part in parts:
            for name, values in part.items():
                if name not in columns:
                    columns[name] = np.empty((self.records, *values.shape[1:]), values.dtype)
                columns[name][place : place + len(values)] = values
            place += len(next(iter(part.values())))
        return cast(Mapping[str, Column], columns)

    def _write(self, parts: Iterable[Columns]) -> None:
        """Writes files under temporary names, as another process may do the same; then gives them theirs, and notes them."""
        Path(self.folder or "").mkdir(parents=True, exist_ok=True)
        suffix = f".{uuid.uuid4().hex}"
        files: dict[str, _ColumnFile] = {}
        made: list[Path] = []
        with contextlib.ExitStack() as stack:
            stack.callback(_delete, made, suffix)
            for part in parts:
                for name, values in part.items():
                    if name not in files:
                        kinds = ("npy", "strings") if values.dtype == object else ("npy",)
                        paths = [self._path(len(files), kind) for kind in kinds]
                        made += paths
                        opened = [stack.enter_context(open(f"{path}{suffix}", "wb")) for path in paths]
                        files[name] = _ColumnFile(opened, self.records, values)
                    files[name].add(values)
            for file in files.values():
                file.flush()
            sizes = {}
            for path in made:
                path.with_name(path.name + suffix).replace(path)
                sizes[path.name] = path.stat().st_size
            note = self._note.with_name(self._note.name + suffix)
            note.write_text(json.dumps({"columns": list(files), "sizes": sizes}, sort_keys=True))
            note.replace(self._note)


class _ColumnFile:
    """A column that is written, part by part: an array, and for strings it has their ends, and another file themselves.

    Written and not mapped: where a disk is full, that would end the process with a signal.

    Args:
        files: the array's, and the strings'.
        records: length of the column.
        values: of the first part.
    """

    def __init__(self, files: Sequence[BinaryIO], records: int, values: npt.NDArray[Any]) -> None:
        self._array, *self._strings = files
        dtype = np.dtype(np.int64) if self._strings else values.dtype
        shape = (records, *values.shape[1:])
        header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(self._array, header)

    def add(self, values: npt.NDArray[Any]) -> None:
        """Writes a part."""
        for strings in self._strings:
            begin = strings.tell()
            strings.writelines(values)
            values = begin + np.cumsum([len(value) for value in values], dtype=np.int64)
        self._array.write(values.tobytes())

    def flush(self) -> None:
        """Writes what is not written yet."""
        for file in (self._array, *self._strings):
            file.flush()


def _delete(paths: Iterable[Path], suffix: str) -> None:
    """Deletes what was not given its own name."""
    for path in paths:
        path.with_name(path.name + suffix).unlink(missing_ok=True)


def plan_cache(
    cache: bool | str | os.PathLike[str], split_name: str, split: Split, fields: Fields, max_corrupt: int = 0
) -> CachePlan | None:
    """Decides whether and where the decoded records of a split are kept.

    Args:
        cache: False, True (memory), "auto" (memory where they take at most a quarter of what is free) or the path of a local
            folder.
        split_name: the split's name.
        split: the split.
        fields: what is read of each record.
        max_corrupt: how many damaged records may be among them.

    Returns:
        The plan, or None for no cache.

    Raises:
        UsageError: the records do not fit where they were asked to be kept (tells the numbers), or `cache` is something else.
        DatasetError: the files of an earlier cache there are damaged.
    """
    if not isinstance(cache, (bool, str, os.PathLike)) or cache == "":
        raise UsageError(f'cache={cache!r}: allowed are False, True, "auto" and the path of a local folder.')
    if cache is False:
        return None
    strings = sum(field.bytes is None for field in fields.all)
    size = split.records * (fields.record_bytes(split) + _STRING_BYTES * strings)
    name = f"{split_name}-{_digest(split, fields, max_corrupt)}"
    if cache is True or cache == "auto":
        free = free_memory()
        share = MEMORY_SHARE if cache is True else AUTO_SHARE
        if free is not None and size <= share * free:
            return CachePlan(None, name, split.records)
        if cache == "auto":
            return None
        if free is None:
            return CachePlan(None, name, split.records)
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
    plan = CachePlan(cache, name, split.records)
    if plan.load() is None:
        free = shutil.disk_usage(existing).free
        if size > free:
            raise UsageError(
                f"cache={cache!r}: the decoded records of {split_name!r} take {_gb(size)}, and {_gb(free)} are free there."
                " Pass a folder on a larger disk, or a smaller image_size."
            )
    return plan


def free_memory() -> int | None:
    """Memory in bytes that this process may still take, or None where the system does not tell.

    The smaller of what the machine has available and what the container's limit (cgroup version 2) leaves.
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


def _digest(split: Split, fields: Fields, max_corrupt: int) -> str:
    """Digest of the records' bytes and of what is decoded of them."""
    records = [(shard.name, shard.records, shard.crc32c) for shard in split.shards]
    decoded = [(field.feature, field.shape, field.cuts) for field in fields.all]
    return hashlib.sha256(repr((records, decoded, max_corrupt)).encode()).hexdigest()[:16]


def _gb(size: int) -> str:
    return f"{size / 1e9:.3g} GB"

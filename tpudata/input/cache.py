"""Whether decoded records are kept, and where: in memory, in files, or not at all."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import shutil
from pathlib import Path

import tensorflow as tf

from tpudata.errors import CorruptionError, DatasetError, StorageError, UsageError
from tpudata.format import Split
from tpudata.input.fields import Fields

# Of the free memory: what "auto" takes for the cache without being told to, and the most that True may take. The rest is
# for the model, the shuffle window and the batches on their way.
AUTO_SHARE = 0.25
MEMORY_SHARE = 0.8
# What tf.data adds per cached tensor: its buffer's and its element's bookkeeping.
_TENSOR_BYTES = 256
_MEMINFO = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")


@dataclasses.dataclass(frozen=True)
class CachePlan:
    """Where decoded records are kept.

    Attributes:
        folder: None for memory, otherwise the folder of the cache's files.
        name: start of the files' names there; another one for other records, so that no cache is read for what it is not.
    """

    folder: str | None
    name: str

    def apply(self, records: tf.data.Dataset) -> tf.data.Dataset:
        """The dataset, cached; StorageError where the folder cannot be made."""
        if self.folder is None:
            return records.cache()
        try:
            Path(self.folder).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StorageError(f"cache={self.folder!r}: the folder could not be made: {error.strerror}.") from None
        cached = records.cache(str(Path(self.folder, self.name)))
        # No records, but what comes behind the last one: a whole pass was written, or read with its checksums.
        end = tf.data.Dataset.range(1).flat_map(
            tf.autograph.experimental.do_not_convert(
                lambda _: records.take(tf.numpy_function(self._note_sizes, [], tf.int64))
            )
        )
        return cached.concatenate(end)

    def check(self) -> bool:
        """Whether the folder holds these records, as far as the sizes of its files tell.

        TensorFlow's errors for files that were cut name no folder, and come in the midst of training.

        Raises:
            DatasetError: a file is missing (or of another size than it was: CorruptionError), or the note of the sizes is damaged.
        """
        if self.folder is None or not Path(self.folder, f"{self.name}.index").is_file():
            return False
        mend = f"Delete the folder {self.folder}; it is made again on the next pass."
        try:
            noted = json.loads(self._note.read_bytes())
            sizes = {str(name): int(size) for name, size in noted.items()}
        except FileNotFoundError:
            return True  # No pass has come to its end since the files were complete.
        except (OSError, ValueError, TypeError, AttributeError):
            raise DatasetError(f"cache={self.folder!r}: {self._note} cannot be read. {mend}") from None
        found = self._sizes()
        for name, size in sizes.items():
            path = str(Path(self.folder, name))
            if name not in found:
                raise DatasetError(f"cache={self.folder!r}: {path} is missing. {mend}")
            if found[name] != size:
                raise CorruptionError(
                    path,
                    min(found[name], size),
                    f"the cached records are damaged: the file has {found[name]} bytes and had {size} when it was complete. {mend}",
                )
        return True

    @property
    def _note(self) -> Path:
        return Path(self.folder or "", f"{self.name}.sizes.json")

    def _sizes(self) -> dict[str, int]:
        """Sizes by name of the files that TensorFlow keeps the records in."""
        paths = [path for kind in ("index", "data-*") for path in Path(self.folder or "").glob(f"{self.name}.{kind}")]
        return {path.name: path.stat().st_size for path in paths}

    def _note_sizes(self) -> int:
        """Notes the sizes for `check`; returns how many records that adds, none."""
        # A folder that may only be read is a cache as well, if one without a note.
        with contextlib.suppress(OSError):
            note = json.dumps(self._sizes(), sort_keys=True).encode()
            # Once, not on every pass. Whole or not at all: another process may be reading it.
            if not self._note.is_file() or self._note.read_bytes() != note:
                temporary = self._note.with_name(f"{self._note.name}.{os.getpid()}")
                temporary.write_bytes(note)
                temporary.replace(self._note)
        return 0


def plan_cache(cache: bool | str | os.PathLike[str], split_name: str, split: Split, fields: Fields) -> CachePlan | None:
    """Decides whether and where the decoded records of a split are kept.

    Args:
        cache: False, True (memory), "auto" (memory where they take at most a quarter of what is free) or the path of a local
            folder.
        split_name: the split's name.
        split: the split.
        fields: what is read of each record.

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
    size = split.records * (fields.record_bytes(split) + _TENSOR_BYTES * len(fields.all))
    name = f"{split_name}-{_digest(split, fields)}"
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
    plan = CachePlan(cache, name)
    if not plan.check():
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


def _digest(split: Split, fields: Fields) -> str:
    """Digest of the records' bytes and of what is decoded of them."""
    records = [(shard.name, shard.records, shard.crc32c) for shard in split.shards]
    decoded = [(field.feature, field.shape) for field in fields.all]
    return hashlib.sha256(repr((records, decoded)).encode()).hexdigest()[:16]


def _gb(size: int) -> str:
    return f"{size / 1e9:.3g} GB"

"""The entries of a dataset's inputs in one sorted file, in which an append looks its inputs up.

Its layout, integers little-endian:

    bytes      what
    8          B, number of buckets, a power of two
    8 (B+1)    index of the first entry of each bucket, then the number of all entries, uint64
    16 N       the entries of tpudata.format.shards.keys, in ascending order as bytes

A bucket holds the entries whose keys begin with the same bits: on average at most 128, 2 kB, so that an input costs one small read.
Keys are hashes, so the inputs of a folder are spread over all buckets.
"""

from __future__ import annotations

import functools
import itertools
import os
import tempfile
import threading
import weakref
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import IO

import numpy as np
import numpy.typing as npt

from beam_jobs.append.entries import (
    Standing,
    find_single_standings,
    find_standing,
    make_line_entry,
    make_lookup_words,
    split_words,
)
from beam_jobs.output.rejects import read_rejections
from beam_jobs.references.reference import HASH_BITS, Reference
from tpudata.errors import BadRecordError, OutputError, StorageError
from tpudata.format import Dataset, Shard
from tpudata.format.layout import INDEX_FOLDER, REJECTS_FOLDER, keys_name
from tpudata.format.shards.keys import ENTRY, ENTRY_BYTES, Entries, ShardKeys
from tpudata.storage import for_each, is_remote, storage_for
from tpudata.storage.local.errors import translate_errors
from tpudata.storage.local.file_urls import local_path

# Maximum mean number of entries in a bucket.
_MAX_BUCKET_ENTRIES = 1 << 7
# Buckets that one request fetches from an object store: 1 MB.
_FETCHED_BUCKETS = 1 << 9
# Buckets that are searched at a time: 8 MB.
_SEARCHED_BUCKETS = 1 << 12
# Rejected inputs whose entries are added at a time: 1 MB.
_REJECTS_PER_PART = 1 << 16
_KEYS_SUFFIX = ".keys"
# Approximate bytes of a line about a rejected input.
_LINE_BYTES = 200
# Entries that are sorted at a time: 16 MB.
_SORTED_ENTRIES = 1 << 20
# Maximum number of temporary files that hold entries until they are sorted.
_MAX_FILES = 256
# Files of keys that are read at the same time, since each request to an object store is slow.
_READERS = 16
# Locks of groups of buckets: one thread fetches a group, while others fetch other groups.
_LOCKS = 64
_NUMBER = np.dtype("<u8")


def write_entry_file(dataset: Dataset, path: str) -> None:
    """Write the entries of all shards of a dataset, and of its rejected inputs, into one file; see `write_entries`.

    Args:
        dataset: a complete dataset, with files of keys.
        path: path of the file.

    Raises:
        CorruptionError: the keys of a shard are damaged.
        OutputError: the keys of a shard are missing.
        StorageError: a file could not be read or written.
    """
    # The count is estimated from file sizes, since the manifest's counts have not been compared with the files yet.
    write_entries(_read_entries(dataset), _estimate_entry_count(dataset), path)


def write_entries(
    parts: Iterable[Entries],
    expected_count: int,
    path: str,
    *,
    max_bucket_entries: int = _MAX_BUCKET_ENTRIES,
    entries_per_sort: int = _SORTED_ENTRIES,
) -> None:
    """Write entries in any order into one sorted file.

    Memory holds one of the parts, and about `entries_per_sort` entries of 16 bytes while they are sorted; temporary files of
    this machine hold the rest. Beyond 256 * `entries_per_sort` entries, more are sorted at a time: there are at most 256 files.

    Args:
        parts: arrays of entries, S16 [n] each.
        expected_count: approximate number of all entries.
        path: path of the file.
        max_bucket_entries: maximum mean number of entries in a bucket.
        entries_per_sort: mean number of entries that are sorted at a time.

    Raises:
        StorageError: the file could not be written.
    """
    bucket_bits = max(1, _count_index_bits(expected_count, max_bucket_entries))
    file_bits = min(_count_index_bits(expected_count, entries_per_sort), _MAX_FILES.bit_length() - 1)
    bucket_counts = np.zeros(1 << bucket_bits, np.int64)
    with ExitStack() as stack:
        files = [stack.enter_context(tempfile.TemporaryFile()) for _ in range(1 << file_bits)]
        for entries in parts:
            keys = split_words(entries)[:, 0]
            np.add.at(bucket_counts, _take_first_bits(keys, bucket_bits), 1)
            _write_to_files(entries, _take_first_bits(keys, file_bits), files)
        first_entries = np.concatenate([[0], np.cumsum(bucket_counts)]).astype(_NUMBER)
        with storage_for(path).create(path) as output:
            output.write(np.array([len(bucket_counts)], _NUMBER).tobytes() + first_entries.tobytes())
            # A temporary file contains all keys with the same first bits, so the files, each sorted, are in order.
            for file in files:
                file.seek(0)
                output.write(np.sort(np.frombuffer(file.read(), ENTRY)).tobytes())


class EntryFile:
    """A file of `write_entry_file`, to look inputs up in; safe to share between threads.

    Each input's bucket is read from the file. If it is on an object store, groups of buckets are fetched once, into a temporary
    file. The file is not mapped into memory: truncating a mapped file would kill the process.

    Args:
        path: path of the file.
        buckets_per_fetch: buckets of a group, which one request fetches from an object store; a power of two.
        buckets_per_search: buckets that are searched at a time.

    Raises:
        StorageError: the file could not be read.
    """

    def __init__(
        self, path: str, *, buckets_per_fetch: int = _FETCHED_BUCKETS, buckets_per_search: int = _SEARCHED_BUCKETS
    ) -> None:
        self._path = path
        self._buckets_per_fetch = buckets_per_fetch
        self._buckets_per_search = buckets_per_search
        self._storage = storage_for(path)
        number_bytes = _NUMBER.itemsize
        bucket_count = int(np.frombuffer(self._storage.read_range(path, 0, number_bytes), _NUMBER)[0])
        index_bytes = number_bytes * (bucket_count + 1)
        # Index of the first entry of each bucket, and then the number of all entries.
        self._first_entries = np.frombuffer(self._storage.read_range(path, number_bytes, index_bytes), _NUMBER).astype(
            np.int64
        )
        # Byte offset of the first entry in the file.
        self._entries_offset = number_bytes + index_bytes
        # The number of buckets is a power of 2: the first bits of a key are the index of its bucket.
        self._bucket_bits = bucket_count.bit_length() - 1
        # Whether `_file` is a local copy of an object, into which `_fetch_groups` writes the buckets that are needed.
        self._is_copy = is_remote(path)
        with translate_errors("read", path):
            self._file = _open_unlinked_file(self) if self._is_copy else os.open(local_path(path), os.O_RDONLY)
        if not self._is_copy:
            weakref.finalize(self, os.close, self._file)
            # Objects in a store are always whole; a local file may have been truncated.
            expected_size = self._entries_offset + int(self._first_entries[-1]) * ENTRY_BYTES
            with translate_errors("read", path):
                size = os.fstat(self._file).st_size
            if size != expected_size:
                raise StorageError(
                    f"{path} could not be read: truncated (got {size} bytes, expected {expected_size}). Start the append again."
                )
        # Indices of the groups that the local copy has.
        self._fetched_groups: set[int] = set()
        self._locks = [threading.Lock() for _ in range(_LOCKS)]

    def find_standings(self, inputs: Sequence[Reference | BadRecordError]) -> list[Standing]:
        """Return the standing of each input in the dataset.

        Args:
            inputs: references, and errors of inputs without one; an error is `REJECTED` if the dataset lists it, else `NEW`.
        """
        is_error = np.array([isinstance(listed_input, BadRecordError) for listed_input in inputs], np.bool_)
        return [Standing(number) for number in self.look_up_standings(make_lookup_words(inputs), is_error).tolist()]

    def look_up_standings(
        self, words: npt.NDArray[np.uint64], is_error: npt.NDArray[np.bool_]
    ) -> npt.NDArray[np.uint8]:
        """Return the standing of each input, which its entry identifies: uint8 [n], values of `Standing`.

        Args:
            words: uint64 [n, 2]: the entries as numbers, see `make_lookup_words`.
            is_error: bool [n]: whether an input was rejected before there was a reference to it.
        """
        standings = np.full(len(words), Standing.NEW, np.uint8)
        order = np.argsort(words[:, 0], kind="stable")
        buckets, row_begins = np.unique(_take_first_bits(words[order, 0], self._bucket_bits), return_index=True)
        # The inputs of `buckets[i]` are the rows `order[row_begins[i] : row_begins[i + 1]]`.
        row_begins = np.append(row_begins, len(order))
        if self._is_copy:
            self._fetch_groups(np.unique(buckets // self._buckets_per_fetch).tolist())
        for batch_begin in range(0, len(buckets), self._buckets_per_search):
            batch_end = min(batch_begin + self._buckets_per_search, len(buckets))
            rows = order[row_begins[batch_begin] : row_begins[batch_end]]
            entries = split_words(self._read_buckets(buckets[batch_begin:batch_end]))
            entry_keys, input_keys = entries[:, 0], words[rows, 0]
            # The entries with the key of `rows[i]` are `entries[begins[i] : ends[i]]`, since entries are sorted.
            begins, ends = (np.searchsorted(entry_keys, input_keys, side) for side in ("left", "right"))
            has_single = (ends - begins == 1) & ~is_error[rows]
            standings[rows[has_single]] = find_single_standings(
                words[rows[has_single], 1], entries[begins[has_single], 1]
            )
            # Errors, and keys with several entries (such as a record and an earlier reject), are so few that a loop is fast enough.
            for index in np.flatnonzero((begins < ends) & ~has_single).tolist():
                row = int(rows[index])
                stored = entries[begins[index] : ends[index], 1].tolist()
                standings[row] = find_standing(int(words[row, 1]), stored, is_error=bool(is_error[row]))
        return standings

    def _read_buckets(self, buckets: npt.NDArray[np.int64]) -> Entries:
        """Return the entries of ascending buckets; neighbouring buckets are read together."""
        first_entries, stop_entries = self._first_entries[buckets], self._first_entries[buckets + 1]
        # Whether entries of other buckets lie between each bucket and the next one, so that a run ends there.
        has_gap = stop_entries[:-1] != first_entries[1:]
        run_firsts = first_entries[np.concatenate([[True], has_gap])].tolist()
        run_stops = stop_entries[np.concatenate([has_gap, [True]])].tolist()
        runs = zip(run_firsts, run_stops, strict=True)
        return np.frombuffer(b"".join(self._read_run(first, stop) for first, stop in runs if first < stop), ENTRY)

    def _read_run(self, first_entry: int, stop_entry: int) -> bytes:
        """Return the bytes of the entries [first_entry, stop_entry); StorageError if the file ends before `stop_entry`."""
        offset, size = self._entries_offset + first_entry * ENTRY_BYTES, (stop_entry - first_entry) * ENTRY_BYTES
        with translate_errors("read", self._path):
            data = os.pread(self._file, size, offset)
        if len(data) != size:
            raise StorageError(
                f"{self._path} could not be read: truncated (got {len(data)} bytes at byte {offset}, expected {size}). Start the"
                " append again."
            )
        return data

    def _fetch_groups(self, group_indices: Sequence[int]) -> None:
        """Fetch the groups of buckets that the local copy of a store's file lacks, many at the same time."""
        missing_indices = [index for index in group_indices if index not in self._fetched_groups]
        for_each(self._path, self._fetch_group, missing_indices)

    def _fetch_group(self, group_index: int) -> None:
        """Fetch a group of buckets into the local copy, at the same offset as in the file, unless another thread has done so."""
        first_bucket = group_index * self._buckets_per_fetch
        # The last group may have fewer buckets. The last item of `_first_entries` is the number of all entries.
        stop_bucket = min(first_bucket + self._buckets_per_fetch, len(self._first_entries) - 1)
        first_entry, stop_entry = int(self._first_entries[first_bucket]), int(self._first_entries[stop_bucket])
        offset, length = self._entries_offset + first_entry * ENTRY_BYTES, (stop_entry - first_entry) * ENTRY_BYTES
        with self._locks[group_index % len(self._locks)]:
            if group_index not in self._fetched_groups:
                os.pwrite(self._file, self._storage.read_range(self._path, offset, length), offset)
                self._fetched_groups.add(group_index)


@functools.lru_cache(maxsize=1)
def open_entry_file(path: str) -> EntryFile:
    """Return the file of `write_entry_file` at a path; cached for the process, since every run has a separate path."""
    return EntryFile(path)


def _open_unlinked_file(owner: EntryFile) -> int:
    """Return the descriptor of an unlinked temporary file, which is closed with its owner.

    The system frees an unlinked file even if the process is killed.
    """
    descriptor, path = tempfile.mkstemp(prefix="tpudata-known-")
    Path(path).unlink()
    weakref.finalize(owner, os.close, descriptor)
    return descriptor


def _count_index_bits(entry_count: int, max_entries: int) -> int:
    """Return how many bits the index of a bucket or a file needs, if each has at most `max_entries` entries on average."""
    # Rounded up.
    container_count = -(-entry_count // max_entries)
    # If there are no entries, the largest index would be -1; no bits are needed then.
    return max(0, container_count - 1).bit_length()


def _take_first_bits(keys: npt.NDArray[np.uint64], bit_count: int) -> npt.NDArray[np.int64]:
    """Return the first `bit_count` bits of each key, which are the index of its bucket or file: int64 [n]."""
    # numpy cannot shift by all 64 bits.
    return (keys >> np.uint64(HASH_BITS - bit_count)).astype(np.int64) if bit_count else np.zeros(len(keys), np.int64)


def _write_to_files(entries: Entries, file_indices: npt.NDArray[np.int64], files: Sequence[IO[bytes]]) -> None:
    """Write each entry into one of the files; `file_indices` has the file's index for each entry: int64 [n]."""
    order = np.argsort(file_indices, kind="stable")
    ends = np.cumsum(np.bincount(file_indices, minlength=len(files)))
    for file, (begin, end) in zip(files, itertools.pairwise([0, *ends.tolist()]), strict=True):
        if begin < end:
            file.write(entries[order[begin:end]].tobytes())


def _read_entries(dataset: Dataset) -> Iterator[Entries]:
    """Yield the entries of all shards, and then of rejected inputs."""
    shards = (shard for split in dataset.manifest.splits.values() for shard in split.shards)
    # Read in batches, since `pool.map` would hold the entries of all shards that the caller has not taken yet.
    with ThreadPoolExecutor(_READERS) as pool:
        while batch := list(itertools.islice(shards, 4 * _READERS)):
            yield from pool.map(functools.partial(_read_shard_entries, dataset), batch)
    rejected_entries = _read_rejected_entries(dataset)
    while batch_of_rejects := list(itertools.islice(rejected_entries, _REJECTS_PER_PART)):
        yield np.array(batch_of_rejects, ENTRY)


def _estimate_entry_count(dataset: Dataset) -> int:
    """Estimate a dataset's number of entries from the sizes of its files."""
    storage = storage_for(dataset.path)
    paths = {name: storage.join(dataset.path, name) for name in (INDEX_FOLDER, REJECTS_FOLDER)}
    files_by_folder = {name: [] if storage.stat(path) is None else storage.list(path) for name, path in paths.items()}
    key_file_bytes = sum(file.size for file in files_by_folder[INDEX_FOLDER] if file.name.endswith(_KEYS_SUFFIX))
    reject_file_bytes = sum(
        file.size for file in files_by_folder[REJECTS_FOLDER] if file.name in dataset.manifest.rejects
    )
    return key_file_bytes // ENTRY_BYTES + reject_file_bytes // _LINE_BYTES


def _read_shard_entries(dataset: Dataset, shard: Shard) -> Entries:
    """Return the entries of a shard's inputs.

    Raises:
        OutputError: the shard's file of keys is missing.
        CorruptionError: the file is damaged, or belongs to another shard.
    """
    storage = storage_for(dataset.path)
    path = storage.join(dataset.path, keys_name(shard.name))
    if storage.stat(path) is None:
        raise OutputError(
            f"--append: {path} is missing, which lists the inputs of the shard. Copy it again from where it is, or pass"
            " --overwrite to convert everything again."
        )
    keys = ShardKeys.from_bytes(storage.read(path), path)
    keys.check(shard, path, is_one_to_one=dataset.manifest.is_one_to_one)
    return keys.entries


def _read_rejected_entries(dataset: Dataset) -> Iterator[bytes]:
    """Yield the entry of each rejected input: from its line in rejects/, or `make_line_entry` of a line that has no entry."""
    for line, entry in read_rejections(dataset.path, dataset.manifest.rejects):
        yield entry or make_line_entry(line)

"""The records of a split by number: what PyTorch calls a map-style dataset and grain a random access data source."""

from __future__ import annotations

import operator
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Literal, SupportsIndex

from tpudata.checks import check_integer, is_integer
from tpudata.error_text.values import format_value
from tpudata.errors import CorruptionError, FeatureError, UsageError
from tpudata.format import open_dataset
from tpudata.source.chunk import Record
from tpudata.source.example_decoder import ExampleDecoder
from tpudata.source.record_stream import stream_records
from tpudata.source.shard_records import ShardRecords
from tpudata.source.shuffled_records import ShuffledRecords
from tpudata.storage import is_remote

# 32 requests of 8 MiB; a disk reads ahead by itself, and more memory costs more CPU than it saves.
_REMOTE_READ_AHEAD_BYTES = 256 << 20
_DISK_READ_AHEAD_BYTES = 8 << 20


class RecordSource:
    """Random access to the records of a split.

    On an object store the ways to read differ by far in their cost:

    - `for record in source` streams: requests of 8 MiB, several at a time;
    - `source.shuffle(...)` is a sequence in shuffled order that costs as little;
    - `source[i]` reads one record with one request, `source.__getitems__([i, ...])` several in one call: neighbours, and near ones,
      with one request of up to 8 MiB, and up to 64 requests at a time. PyTorch's DataLoader calls `__getitems__` for each batch.

    Every record is checked against its checksums. The order is the dataset's.

    A source can be pickled, shared between threads, and used in forked processes. It holds no open files. The indexes of shards
    are read when first needed; at most 256 MiB of them, and for compressed shards 64 MiB of unpacked blocks, stay in memory.

    Args:
        data: the dataset's folder: a local path, or a URL such as gs://BUCKET/FOLDER.
        split: name of the split.
        decode: `"numpy"` gives a dict of arrays by the names that `make_input_fn` uses, see `ExampleDecoder`; None gives the
            serialized record as bytes; a function gives what it returns for these bytes. To be pickled, it must be importable.
        features: with `"numpy"`, the names to decode, as `ExampleDecoder` takes them; None decodes what a model is
            fed and the label.
        read_ahead: maximum bytes of records that iteration holds in memory, unpacked, records in flight included, in
            chunks of up to 8 MiB. None is 256 MiB on an object store, 32 requests in flight, and 8 MiB on a disk.

    Raises:
        UsageError: an argument is of the wrong type or value.
        FeatureError: as for `ExampleDecoder`, for example if `features` names a feature that the dataset does not have.
        DatasetError: the folder has no complete dataset, or the dataset does not have this split.
        StorageError: the manifest cannot be read.
    """

    def __init__(
        self,
        data: str | os.PathLike[str],
        split: str,
        *,
        decode: Literal["numpy"] | Callable[[bytes], Any] | None = "numpy",
        features: Sequence[str] | None = None,
        read_ahead: int | None = None,
    ) -> None:
        folder = os.fspath(data) if isinstance(data, (str, os.PathLike)) else None
        if not isinstance(folder, str) or not folder:
            raise UsageError(f"data={data!r}: expected the path of a dataset's folder. Pass a str or a Path.")
        if not isinstance(split, str):
            raise UsageError(f"split={format_value(split)}: expected the name of a split. Pass one, such as 'train'.")
        if decode != "numpy" and decode is not None and not callable(decode):
            raise UsageError(f'decode={decode!r}: expected "numpy", None or a function of bytes. Pass one of these.')
        if features is not None and decode != "numpy":
            raise UsageError('features: only decode="numpy" selects features. Omit one of the two arguments.')
        if isinstance(features, str):
            raise UsageError(f"features={features!r}: expected a sequence of names. Pass [{features!r}].")
        check_integer("read_ahead", read_ahead, 1, or_none=True)
        dataset = open_dataset(folder)
        default_bytes = _REMOTE_READ_AHEAD_BYTES if is_remote(folder) else _DISK_READ_AHEAD_BYTES
        self._read_ahead = default_bytes if read_ahead is None else operator.index(read_ahead)
        self._split = split
        self._folder = folder
        self._records = ShardRecords(dataset, split)
        self._decode: Callable[[bytes], Any] | None
        self._decode = ExampleDecoder(dataset.manifest, features) if decode == "numpy" else decode

    def __len__(self) -> int:
        """Return the number of records."""
        return len(self._records)

    def __getitem__(self, number: SupportsIndex) -> Any:
        """Return one record, counted from 0; negative numbers count from the end.

        Raises:
            TypeError: the number is not an integer.
            IndexError: there is no record of this number.
            CorruptionError: the record is damaged; the message names file and offset.
            DatasetError: the shard's index belongs to another shard.
            FeatureError: the features of the record differ from the manifest's.
            StorageError: the shard or its index cannot be read.
        """
        return self._decode_record(self._records.read_one(self._resolve_number(number)))

    def __getitems__(self, numbers: Iterable[SupportsIndex]) -> list[Any]:
        """Return several records, in the order of `numbers`; raises what `source[i]` raises."""
        record_numbers = [self._resolve_number(number) for number in numbers]
        return [self._decode_record(record) for record in self._records.read(record_numbers)]

    def __iter__(self) -> Iterator[Any]:
        """Yield all records in order, in chunks that threads read ahead; raises what `source[i]` raises."""
        for record in stream_records(self._records, self._read_ahead):
            yield self._decode_record(record)

    def shuffle(
        self,
        seed: int = 0,
        *,
        epochs: int = 1,
        host_index: int = 0,
        host_count: int = 1,
        workers: int = 1,
        batch_size: int = 1,
        window_bytes: int = 256 << 20,
    ) -> ShuffledRecords:
        """Return the records in a shuffled order, as a sequence that is read at the rate of a stream.

        Shards are cut into chunks of 8 MiB, less for a small window. Every epoch permutes the chunks over the whole split, and the
        records within windows of neighbouring chunks in that order. The order depends on the dataset and the arguments alone, on
        any machine. Pass the result to PyTorch's DataLoader without `shuffle=True`, or to `grain.MapDataset.source` without
        `.shuffle()`.

        Args:
            seed: seed of the order, 0 or more.
            epochs: number of epochs, one after the other in the sequence. With `range(k, len(shuffled))` as its sampler, PyTorch's
                loader begins at position k.
            host_index: index of this host, from 0.
            host_count: number of hosts that share each epoch: every record goes to one host, and the hosts' record counts in an
                epoch differ by one at most.
            workers: number of a loader's worker processes. Each then reads its own chunks; otherwise each would read all of them.
            batch_size: with `workers`, the number of neighbouring records that a loader gives to one worker: its batch size.
            window_bytes: size in the files, in bytes, of a window of records that are permuted together.

        Raises:
            UsageError: an argument is of the wrong type or out of range.
        """
        return ShuffledRecords(
            self._records,
            self._decode_record,
            seed=seed,
            epochs=epochs,
            host_index=host_index,
            host_count=host_count,
            workers=workers,
            batch_size=batch_size,
            window_bytes=window_bytes,
        )

    def __repr__(self) -> str:
        # Grain compares this string in a checkpoint with the string in the run that restores the checkpoint.
        decode = (
            "numpy" if isinstance(self._decode, ExampleDecoder) else getattr(self._decode, "__qualname__", self._decode)
        )
        return f"RecordSource({self._folder!r}, split={self._split!r}, decode={decode!r}, records={len(self)})"

    def _resolve_number(self, number: SupportsIndex) -> int:
        """Return the number of a record from 0, given one that may count from the end; TypeError or IndexError for other values."""
        if not is_integer(number):
            raise TypeError(f"RecordSource takes record numbers (got {number!r}). Use source.__getitems__ for several.")
        index, count = operator.index(number), len(self)
        if not -count <= index < count:
            raise IndexError(f"{self!r}: no record {format_value(index)} (expected {-count} to {count - 1}).")
        return index % count

    def _decode_record(self, record: Record) -> Any:
        """Return a record decoded as requested; errors of the built-in decoder name its file and offset."""
        if self._decode is None:
            return record.data
        try:
            return self._decode(record.data)
        except CorruptionError as error:
            if not isinstance(self._decode, ExampleDecoder):
                raise
            raise CorruptionError(record.path, record.offset, error.reason) from None
        except FeatureError as error:
            if not isinstance(self._decode, ExampleDecoder):
                raise
            raise FeatureError(f"{record.path} at byte {record.offset}: {error}") from None

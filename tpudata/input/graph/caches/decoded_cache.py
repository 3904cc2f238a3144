"""Cache of decoded records in files: a dataset of Examples of raw bytes, with as many records and shards as the split."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path

import tensorflow as tf

from tpudata._version import __version__
from tpudata.errors import CorruptionError, DatasetError, StorageError
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
from tpudata.input.dataset_ops import iterate_numpy
from tpudata.input.files.shards import check_shards, open_shards
from tpudata.input.graph.caches.cache import Cache
from tpudata.input.graph.reading.read_plan import ReadPlan
from tpudata.input.graph.reading.stored_records import StoredRecords
from tpudata.storage import storage_for
from tpudata.tensor_types import Array

CACHE_SPLIT = "records"
_LAYOUT = "raw"
# Text with which the fix begins in messages about a damaged dataset.
_DATASET_FIX = ". Restore it"


class DecodedCache(Cache):
    """Cache of decoded records in a folder, which the first dataset writes.

    Args:
        folder: the user's folder of caches.
        name: name of the dataset there, with a digest of the records, so that a cache serves no other records.
        plan: plan of reading all records of the split.
        fields: fields that are read of each record.
    """

    is_decoded = True

    def __init__(self, folder: str, name: str, plan: ReadPlan, fields: Fields) -> None:
        self._folder = folder
        self._name = name
        self._plan = plan
        self._fields = fields
        # The records in the cache's files, once these are complete.
        self._written: StoredRecords | None = None

    @property
    def path(self) -> str:
        """Folder of the dataset."""
        return str(Path(self._folder, self._name))

    def open(self, stored: StoredRecords) -> StoredRecords:
        """Return the records in the cache's files, which the first call writes unless they exist.

        Raises:
            DatasetError: a file is missing or cannot be read.
            CorruptionError: a file of the cache is damaged.
            StorageError: a file cannot be written.
            tf.errors.OpError: a record of the split is damaged.
        """
        if self._written is None:
            # The dataset may belong to a graph of TensorFlow 1; the records are read outside of it.
            with tf.init_scope():
                dataset = self.load() or self._fill(stored.all)
            self._written = StoredRecords(open_shards(dataset, CACHE_SPLIT), _make_cached_fields(self._fields))
        return self._written if stored.ids is None else self._written.select(stored.ids)

    def load(self) -> Dataset | None:
        """Return the dataset of the cache; None if it is not complete.

        Raises:
            DatasetError: a file is missing or cannot be read.
            CorruptionError: a file is damaged.
        """
        if storage_for(self.path).stat(str(Path(self.path, MANIFEST_NAME))) is None:
            return None
        try:
            dataset = open_dataset(self.path)
            check_shards(dataset, CACHE_SPLIT)
            for shard in dataset.manifest.split(CACHE_SPLIT).shards:
                dataset.index(shard)
            # Without some of its records, the cache's others would not be at their places in the split.
            if dataset.quarantine.shards:
                raise DatasetError(f"{self.path} has damaged records in quarantine")
        except CorruptionError as error:
            # Replace the fix of a dataset, "Restore it ...", since a damaged cache can be deleted.
            reason = error.reason.partition(_DATASET_FIX)[0]
            raise CorruptionError(error.path, error.offset, f"{reason}. {self._fix}") from None
        except (DatasetError, StorageError) as error:
            reason = str(error).partition(_DATASET_FIX)[0].rstrip(".")
            raise DatasetError(f"cache={self._folder!r}: {reason}. {self._fix}") from None
        return dataset

    def _fill(self, stored: StoredRecords) -> Dataset:
        """Write all records of the split, decoded, to the cache's folder, and return the dataset of these files."""
        chunks, split = self._plan.chunks, self._plan.split

        def read_decoded() -> tf.data.Dataset:
            ranges = tf.data.Dataset.from_tensor_slices((chunks.firsts, chunks.stops))
            return stored.read(ranges, stored.make_loader(chunks.firsts, is_decoded=True), self._plan.num_reads)

        records = _encode_records(iterate_numpy(read_decoded), self._fields)
        count = len(split.shards)
        shards = [
            write_shard(self.path, shard_name(CACHE_SPLIT, shard_index, count), islice(records, shard.records))
            for shard_index, shard in enumerate(split.shards)
        ]
        manifest = Manifest(
            layout=_LAYOUT,
            splits={CACHE_SPLIT: Split(tuple(shards))},
            features=tuple(field.feature for field in _make_cached_fields(self._fields).all),
            source=Source("cache", split.records, split.bytes, self._name),
            created_by=__version__,
        )
        write_metadata(self.path, manifest)
        return Dataset(self.path, manifest)

    @property
    def _fix(self) -> str:
        return f"Delete the folder {self.path}; it is made again."


def _make_cached_fields(fields: Fields) -> Fields:
    """Return the fields of the cache's records, which have the decoded values of `fields`."""
    label = None if fields.label is None else _make_cached_field(fields.label)
    weight = None if fields.weight is None else _make_cached_field(fields.weight)
    return Fields(tuple(map(_make_cached_field, fields.inputs)), label, weight)


def _make_cached_field(field: Field) -> Field:
    """Return a field of the cache: strings unchanged, and numbers of the decoded dtype and shape as their bytes."""
    name = field.feature.name
    if field.bytes is None:
        return Field(Feature(name, "bytes", "string", field.shape), field.name, field.shape)
    return Field(Feature(name, "bytes", field.dtype, field.shape, "raw"), field.name, field.shape)


def _encode_records(batches: Iterable[Mapping[str, Array]], fields: Fields) -> Iterator[bytes]:
    """Yield the Example of each record, from the decoded columns of batches of records."""
    names = [field.feature.name for field in fields.all]
    for columns in batches:
        for record_values in zip(*(columns[name] for name in names), strict=True):
            yield encode_example(
                {name: _encode_value(decoded) for name, decoded in zip(names, record_values, strict=True)}
            )


def _encode_value(decoded: Array) -> bytes | list[bytes]:
    """Return bytes, or the list of bytes of an array of strings, unchanged; numbers as their raw bytes."""
    if isinstance(decoded, bytes):
        return decoded
    encoded: bytes | list[bytes] = decoded.ravel().tolist() if decoded.dtype == object else decoded.tobytes()
    return encoded


def digest_records(dataset: Dataset, split: Split, fields: Fields | None = None) -> str:
    """Return a digest that identifies the records' bytes and, if fields are passed, how they are decoded."""
    quarantined_by_shard = {name: shard.records for name, shard in dataset.quarantine.shards.items()}
    records = [
        (shard.name, shard.records, shard.crc32c, quarantined_by_shard.get(shard.name)) for shard in split.shards
    ]
    decodings = [] if fields is None else [_describe_decoding(field) for field in fields.all]
    return hashlib.sha256(repr((records, decodings)).encode()).hexdigest()[:16]


def _describe_decoding(field: Field) -> tuple[object, ...]:
    """Return everything that determines a decoded value.

    Only fields with `padding`, a `counted_key`, `is_multi_hot` or a `default` have parts for these. So other fields have the same
    digests as before these options existed, and old caches remain valid.
    """
    padding = () if field.padding is None else (field.padding.key, field.padding.value)
    counts = () if field.counted_key is None else (field.counted_key,)
    classes = ("classes",) if field.is_multi_hot else ()
    default = () if field.default is None else ("default", field.default)
    return field.feature, field.shape, field.cuts, *padding, *counts, *classes, *default

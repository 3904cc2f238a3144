"""`SplitFiles`: the files of a split, whatever their kind."""

from __future__ import annotations

import abc
import dataclasses
import functools
import os
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import tensorflow as tf

from tpudata.errors import UsageError
from tpudata.format import Dataset, Feature, Manifest, Shard
from tpudata.format.read_errors import name_of_files, name_of_split
from tpudata.format.tfrecord.frame_scan import Offsets
from tpudata.input.dataset.fields import PARSE, Field, Fields
from tpudata.input.dataset.select_fields import select_fields
from tpudata.input.decode.parse import Columns
from tpudata.input.options.columns import FeatureOptions
from tpudata.input.options.tokens import Tokens
from tpudata.storage import Entry, is_remote

# Returns decoded records, by feature name a tensor [n, *field.shape], for stored ones, string [n].
Decode: TypeAlias = "Callable[[tf.Tensor], dict[str, tf.Tensor]]"

# TensorFlow's client for an object store fetches a block, 64 MiB by default, for each read that is not larger than one.
_BLOCK_BYTES = 64 << 20


@dataclasses.dataclass(frozen=True, eq=False)
class Run:
    """Neighbouring records of a file, in a graph.

    Attributes:
        path: path of the file, string scalar.
        file_index: index of the file in its split, int64 scalar.
        file_bytes: size of the file, int64 scalar.
        offset: byte at which reading begins, int64 scalar.
        size: bytes to read, int64 scalar.
        skipped: number of records in these bytes before the first wanted one, int64 scalar.
        count: number of records that are wanted, int64 scalar.
        first_record: index in the file of the first record in these bytes, int64 scalar.
        is_remote: whether the file is on an object store.
    """

    path: tf.Tensor
    file_index: tf.Tensor
    file_bytes: tf.Tensor
    offset: tf.Tensor
    size: tf.Tensor
    skipped: tf.Tensor
    count: tf.Tensor
    first_record: tf.Tensor
    is_remote: bool

    def read_parts(self, part_bytes: int | tf.Tensor) -> tf.data.Dataset:
        """Return a dataset of the run's bytes, in parts of `part_bytes`, an int or int64 scalar that divides the run's size."""
        bytes_after = self.file_bytes - self.offset - self.size
        # The dataset reads nothing before the offset, so that one read fits the run exactly. A local file takes the default buffer.
        buffer = self.compute_buffer_bytes(bytes_after) if self.is_remote else None
        return tf.data.FixedLengthRecordDataset(self.path, part_bytes, self.offset, bytes_after, buffer)

    def read_bytes(self) -> tf.Tensor:
        """Return the run's bytes, string scalar."""
        return self.read_parts(self.size).get_single_element()

    def compute_buffer_bytes(self, bytes_after: tf.Tensor) -> tf.Tensor:
        """Return the buffer size, in bytes, with which reading the run is one request if possible.

        One request is possible for a run larger than a block, which the client reads without fetching blocks, and for a run at
        the end of its file, where a larger buffer finds nothing more to read.

        Args:
            bytes_after: number of bytes of the file after the run, int64 scalar.
        """
        return tf.where(tf.equal(bytes_after, 0), tf.maximum(self.size, _BLOCK_BYTES + 1), self.size)


class SplitFiles(abc.ABC):
    """The files of a split: how records are found in them, read and parsed. Each kind of file is a subclass.

    A kind that defines no more than `read_records` feeds records as stored.

    Args:
        dataset: the dataset.
        split: name of the split.
        description: the user's description of files without a manifest; None for a dataset that has one.

    Attributes:
        dataset: the dataset.
        split: name of the split.
        description: the description.
        hint: fix for features that cannot be fed.
        frame_bytes: bytes that each record takes in a file in addition to its data; None if sizes of records are not compared
            with their offsets.
    """

    hint = PARSE
    frame_bytes: int | None = None

    def __init__(self, dataset: Dataset, split: str, description: Any = None) -> None:
        self.dataset = dataset
        self.split = split
        self.description = description

    @staticmethod
    def scan(description: Any, file: Entry) -> Offsets:
        """Return where the records of a described file begin, and where the last one ends: int64 [records + 1].

        Each kind of files without a manifest overrides it.

        Raises:
            CorruptionError: the file is truncated, damaged or compressed.
        """
        raise NotImplementedError

    @property
    def manifest(self) -> Manifest:
        """The manifest of the dataset."""
        return self.dataset.manifest

    @property
    def shards(self) -> tuple[Shard, ...]:
        """The shards of the split."""
        return self.manifest.split(self.split).shards

    @property
    def is_remote(self) -> bool:
        """Whether the files are on an object store."""
        return is_remote(self.dataset.shard_path(self.shards[0]))

    @property
    def name(self) -> str:
        """Name of the tf.data datasets that read this split: `find_file_error` finds the file from it."""
        if self.description is None:
            return name_of_split(self.dataset.path, self.split)
        return name_of_files([self.dataset.shard_path(shard) for shard in self.shards])

    @property
    def declared_features(self) -> Sequence[Feature]:
        """Features that the user has declared for the files."""
        return ()

    def choose_fields(
        self,
        feature_options: FeatureOptions,
        *,
        image_size: tuple[int, int] | None = None,
        keep_encoded: bool = False,
        tokens: Tokens,
        label_name: str | None = None,
    ) -> Fields:
        """Return the fields that are read of each record.

        Args:
            feature_options: options that choose the fields.
            image_size: (height, width) to resize encoded images and label maps to; None to keep their size.
            keep_encoded: whether images, label maps and masks stay encoded, since a crop decodes them.
            tokens: options of sequences of tokens.
            label_name: name of the label if `feature_options.label` is None; None for the usual names.

        Raises:
            CorruptionError: the first record is not what the user describes.
            FeatureError: a feature is missing, differs from what is stored, or has no static shape.
            UsageError: an option does not fit the kind of files, or the features.
        """
        return select_fields(
            self.manifest,
            feature_options,
            image_size=image_size,
            keep_encoded=keep_encoded,
            sequence_length=tokens.length,
            truncate=tokens.truncate,
            buckets=tokens.buckets,
            label_name=label_name,
            hint=self.hint,
        )

    def check_cache(self, cache: bool | str | os.PathLike[str]) -> None:
        """Check that decoded records may be kept in memory or in a folder, as the option `cache` chooses.

        Raises:
            UsageError: `cache` is a folder, and the files have no manifest.
        """
        # `choose_cache` rejects an empty path.
        if self.description is not None and isinstance(cache, (str, os.PathLike)) and cache not in ("auto", ""):
            raise UsageError(
                f"cache={os.fspath(cache)!r}: without a manifest, changes of the files after caching cannot be found. Pass"
                ' cache=True or "auto", which keep records in memory.'
            )

    @abc.abstractmethod
    def read_records(self, run: Run) -> tf.data.Dataset:
        """Return a dataset of the records of a run as stored, string scalars; more records of the file may follow."""

    def make_decoder(self, fields: Sequence[Field]) -> Decode:
        """Return a function that decodes the values of `fields` in stored records."""
        return functools.partial(keep_whole, fields)

    def parse_features(self, stored: tf.Tensor, fields: Sequence[Field]) -> Columns:
        """Parse records without decoding: each feature by its full name, as stored, a row for each record.

        Lists of any length are ragged; encoded images, text and the raw bytes of Examples are strings.

        Args:
            stored: string [n].
            fields: fields that are read of each record.
        """
        # The default decoder keeps records whole; kinds whose decoders decode override this method.
        return dict(self.make_decoder(fields)(stored))


def keep_whole(fields: Sequence[Field], stored: tf.Tensor) -> dict[str, tf.Tensor]:
    """Return stored records unchanged as the value of each field, by feature name."""
    return {field.feature.name: stored for field in fields}

"""The steps from shards to batches, in order."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable
from typing import Any, Literal

import tensorflow as tf

from tpudata.errors import UsageError
from tpudata.format import Dataset
from tpudata.input.batch import check_static, has_room, map_named, pad_batch, with_rows, with_weights
from tpudata.input.cache import CachePlan
from tpudata.input.fields import Fields
from tpudata.input.image import cast_image
from tpudata.input.parse import parse_batch, to_int32
from tpudata.input.source import serialized_blocks

# Decoded at one time: whole batches make parsing fast, and beyond a few MB they only take memory.
_CHUNK_BYTES = 16 << 20
_CHUNK_RECORDS = 1024
# The default window of the shuffle, in bytes of stored records, and its least length.
_WINDOW_BYTES = 256 << 20
_WINDOW_RECORDS = 1024
# These steps have no Python control flow over tensors; converting them would cost the first dataset a second.
_as_written = tf.autograph.experimental.do_not_convert
_PARALLEL = {"num_parallel_calls": tf.data.AUTOTUNE, "deterministic": True}
_DTYPES = ("uint8", "float32", "bfloat16", "float16")


@dataclasses.dataclass(frozen=True)
class Options:
    """How records are fed; the attributes are the arguments of `make_input_fn`, and `bare` is whether it names one feature.

    Raises:
        UsageError: an option is out of range or of another type.
    """

    training: bool
    dtype: str
    bare: bool
    transform: Callable[..., Any] | None
    shuffle_buffer: int | None
    seed: int | None
    weights: Literal["feature", "sample_weight"]

    def __post_init__(self) -> None:
        if not isinstance(self.training, bool):
            raise UsageError(f"training={self.training!r}: allowed are True and False.")
        if self.transform is not None and not callable(self.transform):
            raise UsageError(f"transform={self.transform!r}: pass a function of (features, labels), or None.")
        if self.dtype not in _DTYPES:
            raise UsageError(f"dtype={self.dtype}: images are fed as one of {', '.join(_DTYPES)}.")
        if self.weights not in ("feature", "sample_weight"):
            raise UsageError(f'weights={self.weights!r}: allowed are "feature" and "sample_weight".')
        if self.shuffle_buffer is not None and not self.training:
            raise UsageError(
                "shuffle_buffer: evaluation takes the records in order. Leave it out, or pass training=True."
            )
        if self.shuffle_buffer is not None and not _is_integer(self.shuffle_buffer, 1):
            raise UsageError(
                f"shuffle_buffer={self.shuffle_buffer!r}: allowed is None or a number of records, an integer of 1 or more."
            )
        if self.seed is not None and not _is_integer(self.seed, 0, 2**32 - 1):
            raise UsageError(f"seed={self.seed!r}: allowed is None or an integer from 0 to 2**32 - 1.")


class Pipeline:
    """The way from a split to batches; `batches` walks it.

    Args:
        dataset: the dataset.
        split: name of the split.
        fields: what is read of each record.
        options: how records are fed.
        cache: where decoded records are kept, or None.
    """

    def __init__(self, dataset: Dataset, split: str, fields: Fields, options: Options, cache: CachePlan | None) -> None:
        self._dataset = dataset
        self._name = split
        self._split = dataset.manifest.split(split)
        self._fields = fields
        self._options = options
        self._cache = cache
        self._chunk = max(1, min(_CHUNK_RECORDS, _CHUNK_BYTES // fields.record_bytes(self._split)))
        # Kept between calls, so that a trainer that asks for its dataset anew every round decodes once.
        self._kept: tf.data.Dataset | None = None

    def batches(self, batch_size: int) -> tf.data.Dataset:
        """What `input_fn` returns for a batch size."""
        training = self._options.training
        if self._cache is None and self._options.transform is None:
            chunk = min(batch_size, self._chunk)
            batches = self._chunks(chunk).map(_as_written(self._fed), **_PARALLEL)
            if chunk < batch_size:
                batches = batches.rebatch(batch_size, drop_remainder=training)
        else:
            batches = self._records().batch(batch_size, drop_remainder=training, **_PARALLEL)
            if self._options.transform is None:
                batches = batches.map(_as_written(self._fed), **_PARALLEL)
        batches = self._static(batches, batch_size) if training else self._padded(batches, batch_size)
        return batches.prefetch(tf.data.AUTOTUNE)

    def _chunks(self, rows: int) -> tf.data.Dataset:
        """Decoded batches of `rows`; mixed and without end in training, otherwise the last one may be shorter."""
        mixed = self._options.training and self._cache is None
        # A cache is filled in the dataset's order, so that training and evaluation may share its files; it is mixed later.
        blocks = serialized_blocks(self._dataset, self._name, shuffle=mixed, seed=self._options.seed)
        serialized = self._mix(blocks.unbatch()).batch(rows) if mixed else blocks.rebatch(rows)
        return serialized.map(_as_written(lambda batch: parse_batch(batch, self._fields.all)), **_PARALLEL)

    def _mix(self, records: tf.data.Dataset) -> tf.data.Dataset:
        """In training: shuffled in a window and without end."""
        if not self._options.training:
            return records
        # A second seed, so that the window does not repeat the draws of the shards' order.
        seed = None if self._options.seed is None else self._options.seed + 1
        return records.shuffle(self._window(), seed=seed, reshuffle_each_iteration=True).repeat()

    def _window(self) -> int:
        records = self._split.records
        if self._options.shuffle_buffer is not None:
            # A window of all records mixes no less, and TensorFlow lays out the whole window at once.
            return min(records, self._options.shuffle_buffer)
        if self._cache is None:
            record_bytes = self._split.bytes // records
        elif self._cache.folder is None:
            return records  # They are in memory already: the window holds references.
        else:
            record_bytes = self._fields.record_bytes(self._split)
        return min(records, max(_WINDOW_RECORDS, _WINDOW_BYTES // record_bytes))

    def _records(self) -> tf.data.Dataset:
        """Single records, decoded, mixed and transformed."""
        records = self._decoded_records()
        if self._options.transform is None:
            return records
        records = records.map(lambda record: self._transformed(self._fed(record)), **_PARALLEL)
        check_static(records.element_spec, "the result of transform")
        if self._fields.label is not None and not (
            isinstance(records.element_spec, tuple) and len(records.element_spec) == 2
        ):
            raise UsageError("transform returned no (features, labels). End it with `return features, labels`.")
        return records

    def _decoded_records(self) -> tf.data.Dataset:
        if self._cache is None:
            return self._chunks(self._chunk).unbatch()
        return self._mix(self._cached_records(self._cache))

    def _cached_records(self, cache: CachePlan) -> tf.data.Dataset:
        if self._kept is not None and tf.executing_eagerly():
            return self._kept
        records = cache.apply(self._chunks(self._chunk).unbatch())
        if tf.executing_eagerly():
            self._kept = records
        return records

    def _fed(self, decoded: dict[str, tf.Tensor]) -> Any:
        """Decoded features, a record or a batch of them, as the model is fed: (features, labels) or features."""
        inputs = {field.name: self._cast(decoded[field.feature.name]) for field in self._fields.inputs}
        features = inputs[self._fields.inputs[0].name] if self._options.bare else inputs
        label = self._fields.label
        return features if label is None else (features, decoded[label.feature.name])

    def _cast(self, value: tf.Tensor) -> tf.Tensor:
        cast = value.dtype == tf.uint8 and self._options.dtype != "uint8"
        return cast_image(value, tf.as_dtype(self._options.dtype)) if cast else value

    def _transformed(self, record: Any) -> Any:
        assert self._options.transform is not None
        result = self._options.transform(*record) if isinstance(record, tuple) else self._options.transform(record)
        if result is None:
            raise UsageError("transform returned None. End it with `return features, labels`.")
        return map_named(_tensor, result, "the result of transform")

    def _static(self, batches: tf.data.Dataset, batch_size: int) -> tf.data.Dataset:
        """Endless whole batches, with their number of rows in their shapes."""
        return batches.map(_as_written(lambda *batch: with_rows(_element(batch), batch_size)), **_PARALLEL)

    def _padded(self, batches: tf.data.Dataset, batch_size: int) -> tf.data.Dataset:
        """One exact pass in batches of one shape, with their weights."""
        records, spec = self._split.records, batches.element_spec
        sample_weight = self._options.weights == "sample_weight"
        place = sample_weight or has_room(spec)
        if not place and records % batch_size:
            raise UsageError(
                f"{records} records in batches of {batch_size}: the last one would be padded, and features that are not a dict"
                ' have no place for its weights. Feed a dict, pass weights="sample_weight" for (features, labels,'
                " weights), or choose a batch size that divides the number of records."
            )

        def pad(*batch: Any) -> Any:
            padded, weights = pad_batch(_element(batch), batch_size)
            if sample_weight:
                return (*padded, weights)
            return with_weights(padded, weights) if place else padded

        batches = batches.map(_as_written(pad), **_PARALLEL)
        return batches.apply(tf.data.experimental.assert_cardinality(-(-records // batch_size)))


def _is_integer(value: Any, least: int, most: int | None = None) -> bool:
    """Whether a value is a whole number, Python's or numpy's, of a range."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        return False
    number = operator.index(value)
    return least <= number and (most is None or number <= most)


def _tensor(name: str, value: Any) -> Any:
    """A leaf of transform's result as a tensor; ragged and sparse ones stay, to be refused by their name."""
    return to_int32(name, value if tf.is_tensor(value) else tf.convert_to_tensor(value))


def _element(arguments: tuple[Any, ...]) -> Any:
    """The dataset's element from the arguments that `map` makes of it."""
    return arguments[0] if len(arguments) == 1 else arguments

"""Comparison of the first record of files without a manifest with the features that their user declares.

Without a manifest, a wrong name or kind is likely, and TensorFlow's parse error names neither the file nor the features that
the record has.
"""

from __future__ import annotations

import contextlib
import itertools
import math

import numpy as np

from tpudata.console.tables import count_text
from tpudata.errors import CorruptionError, FeatureError
from tpudata.format import Dataset, decode_example, read_records
from tpudata.format.example.wire import Value
from tpudata.format.label_map import find_label_map_problem
from tpudata.format.tfrecord.framing import FOOTER_BYTES, FRAME_BYTES, HEADER_BYTES, matches_checksum
from tpudata.input.dataset.fields import Field, Fields
from tpudata.storage import storage_for

# Number of the record's features that a message names.
_MAX_NAMES = 20
# Maximum number of records in which a list is searched for.
_MAX_SEARCHED_RECORDS = 1000


def check_first_record(dataset: Dataset, split: str, fields: Fields, hint: str) -> None:
    """Check that the first record fits the fields that are read. A damaged record is ignored here: the reader reports it.

    Args:
        dataset: TFRecord files without a manifest, opened as a dataset.
        split: name of the split.
        fields: fields that are read of a `tf.train.Example`.
        hint: fix for a record that does not fit the fields; ends the error message.

    Raises:
        CorruptionError: the record is not an Example.
        FeatureError: a feature is missing from the record, a list is in none of the first 1,000 records, or the
            values of a feature differ in kind, number or size.
    """
    shard = dataset.manifest.split(split).shards[0]
    path = dataset.shard_path(shard)
    offset, end = dataset.index(shard).offsets[:2].tolist()
    frame = storage_for(path).read_range(path, offset, end - offset)
    record, footer = frame[HEADER_BYTES:-FOOTER_BYTES], frame[-FOOTER_BYTES:]
    # The file was truncated after the scan, or the record is damaged: the reader reports it. A shorter frame may have no footer.
    if len(frame) < max(end - offset, FRAME_BYTES) or not matches_checksum(record, footer):
        return
    try:
        example = decode_example(record, path=path, offset=offset)
    except CorruptionError as error:
        fix = "Pass parse= to make_input_fn, which takes apart records of any kind, and omit features=."
        raise CorruptionError(path, offset, f"{error.reason}. {fix}") from None
    stored = [field for field in fields.all if field.is_stored]
    missing_lists = {field.feature.name for field in stored if field.is_list and field.feature.name not in example}
    if missing_lists:
        _check_lists_exist(path, missing_lists, hint)
    for field in stored:
        misfit = _describe_misfit(example, field)
        if misfit is not None:
            raise FeatureError(
                f"{path} at byte {offset}: feature {field.feature.name!r} {misfit}. {_describe_features(example)}. {hint}"
            )


def _check_lists_exist(path: str, names: set[str], hint: str) -> None:
    """Check that each of some lists, which the first record lacks, is in one of the first 1,000; FeatureError if not.

    Some writers omit empty lists, and TensorFlow reads a missing one as empty: a wrong name would give only empty lists.
    """
    stored_names: set[str] = set()
    num_searched = 0
    # Stop at a damaged record, which the reader reports.
    with contextlib.suppress(CorruptionError):
        for offset, record in itertools.islice(read_records(path), _MAX_SEARCHED_RECORDS):
            stored_names.update(decode_example(record, path=path, offset=offset))
            num_searched += 1
            if names <= stored_names:
                return
    missing = ", ".join(map(repr, sorted(names - stored_names)))
    raise FeatureError(
        f"{path}: feature {missing} is in none of the first {count_text(num_searched, 'record')}. {hint}"
    )


def _describe_misfit(example: dict[str, Value], field: Field) -> str | None:
    """Return what is wrong with a record's values of a field, in words that follow the feature's name; None if they fit."""
    feature = field.feature
    values = example.get(feature.name)
    if not values:
        # A list may be empty or missing, and a default takes the place of missing values.
        if field.is_list or field.default is not None:
            return None
        return "is not in the record" if values is None else "has no values"
    if _find_kind(values) != feature.kind:
        return f"has {count_text(len(values), 'value')} of kind {_find_kind(values)}, and not of kind {feature.kind}"
    if feature.encoding is None and field.is_list:
        values_per_entry = math.prod(field.shape[1:])
        if len(values) % values_per_entry == 0:
            return None
        return f"has {count_text(len(values), 'value')}, which are not whole entries of {values_per_entry}"
    expected_count = 1 if feature.is_one_value else math.prod(field.shape)
    if len(values) != expected_count:
        expected = "one that is its bytes" if feature.is_one_value else f"{expected_count} of shape {field.shape}"
        return f"has {count_text(len(values), 'value')}, and not the {expected}"
    if feature.is_label_map and isinstance(values[0], bytes):
        return find_label_map_problem(values[0], feature.dtype) or None
    # The bytes of a list may have any length.
    if feature.encoding == "raw" and not field.is_list and isinstance(values[0], bytes):
        size = np.dtype(feature.dtype).itemsize * math.prod(field.shape)
        if len(values[0]) != size:
            return (
                f"has {count_text(len(values[0]), 'byte')}, and not the {size} of {field.shape} {feature.dtype} values"
            )
    return None


def _find_kind(values: Value) -> str:
    """Return the kind of a feature's values, as `Feature.kind`; there is at least one."""
    return {bytes: "bytes", int: "int64", float: "float"}[type(values[0])]


def _describe_features(example: dict[str, Value]) -> str:
    """Return the features of a record in words, the first 20 by name."""
    names = sorted(example)
    features = [f"{name} ({_describe_values(example[name])})" for name in names[:_MAX_NAMES]]
    more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
    return f"The record has {', '.join(features) or 'no features'}{more}"


def _describe_values(values: Value) -> str:
    """Return the kind and the number of a feature's values, in words; for a single bytes value its size instead of the number."""
    if not values:
        return "no values"
    if len(values) == 1 and isinstance(values[0], bytes):
        return f"bytes, {count_text(len(values[0]), 'byte')}"
    return f"{_find_kind(values)}, {count_text(len(values), 'value')}"

"""Predictions as JSON Lines or CSV: an object or a row for each record.

index         the record's number in the split, from 0
filename      name of the file that the record was made from, if the record has it
label         the true label, if the record has one
label_name    name of the label's class, if classes have names
predictions   the model's predictions, by name
class_name    name of the class in predictions["classes"], if both exist

A file whose name ends in .csv has these columns, with a column for each prediction in place of predictions. A prediction's column
is called predictions.NAME if one of these columns is called NAME. Values other than a single number or string are written as JSON.
The first record determines the columns.
"""

from __future__ import annotations

import csv
import io
import itertools
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from tpudata.errors import UsageError
from tpudata.format import Dataset, Feature
from tpudata.storage import storage_for
from tpudata.tensor_types import Array

_FILENAME = "image/filename"
_CLASSES = "classes"
# Names that only these columns of CSV have; a prediction with one of these names is renamed.
_FIXED_COLUMNS = ("index", "filename", "label", "label_name", "class_name")


def write_predictions(
    path: str,
    predictions: Iterable[Mapping[str, Array]],
    dataset: Dataset,
    split: str,
    label: Feature | None,
    max_records: int | None = None,
) -> tuple[int, int | None]:
    """Write the predictions with their records' labels and file names; the file appears whole or not at all.

    Args:
        path: path of the file, which is CSV if it ends in .csv.
        predictions: arrays by name for each record, in the split's order.
        dataset: dataset of the records.
        split: name of the split.
        label: feature with the true label, or None.
        max_records: maximum number of records; None for the whole split.

    Returns:
        The number of records written, and the number of written records whose predicted class is their true label; the second
        number is None if the labels or the predictions `classes` are missing or are not one integer for each record.

    Raises:
        ValueError: there are fewer or more predictions than records, up to `max_records`.
        UsageError: a prediction has complex numbers.
        StorageError: the file could not be written.
    """
    class_names = dataset.labels()
    records = itertools.islice(dataset.examples(split), max_records)
    num_written = num_correct = 0
    has_accuracy = label is not None and label.shape == () and "int" in label.dtype
    format_line = make_line_formatter(path)
    predictions = itertools.islice(predictions, max_records)
    with storage_for(path).create(path) as file:
        for index, (record, predicted) in enumerate(zip(records, predictions, strict=True)):
            line: dict[str, Any] = {"index": index}
            if filename := record.get(_FILENAME):
                line["filename"] = _convert_to_json(filename[0], "filename")
            json_predictions = {name: _convert_to_json(prediction, name) for name, prediction in predicted.items()}
            predicted_class = json_predictions.get(_CLASSES)
            if label is not None:
                true_label = _read_label(record.get(label.name, []), label)
                line["label"] = true_label
                line |= _name_class("label_name", true_label, class_names, label)
                line |= _name_class("class_name", predicted_class, class_names, label)
                num_correct += predicted_class == true_label
            has_accuracy = has_accuracy and isinstance(predicted_class, int)
            line["predictions"] = json_predictions
            file.write(format_line(line))
            num_written += 1
    if not has_accuracy:
        return num_written, None
    return num_written, num_correct


def _read_label(stored_values: Sequence[Any], label: Feature) -> Any:
    """Return the true label of a record: one value, or a list if the label has a shape or the record has no value.

    Args:
        stored_values: values of the feature in the record; [] if the record lacks it.
        label: feature with the true label.
    """
    labels = list(stored_values)
    # A raw feature is stored as one bytes object with all numbers.
    if label.encoding == "raw" and labels:
        labels = np.frombuffer(labels[0], np.dtype(label.dtype).newbyteorder("<")).tolist()
    return labels[0] if label.shape == () and labels else labels


def make_line_formatter(path: str) -> Callable[[Mapping[str, Any]], bytes]:
    """Return a function that is called for each line in turn, and formats CSV if the path ends in .csv, else JSON Lines."""
    return _CsvFormatter() if path.lower().endswith(".csv") else _format_json_line


def _format_json_line(line: Mapping[str, object]) -> bytes:
    return json.dumps(line, ensure_ascii=False, allow_nan=False).encode() + b"\n"


class _CsvFormatter:
    """Formatter of lines as rows of CSV; the first call also returns the row with the names of the columns."""

    def __init__(self) -> None:
        self._columns: list[str] = []

    def __call__(self, line: Mapping[str, Any]) -> bytes:
        """Return a record's row with a column for each entry of `predictions`; the first call puts the heading before it."""
        cells = {name: cell for name, cell in line.items() if name != "predictions"}
        for name, cell in line.get("predictions", {}).items():
            # A prediction may have the name of another column.
            cells[f"predictions.{name}" if name in _FIXED_COLUMNS else name] = cell
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        if not self._columns:
            # The first record's class may have no name while a later one has.
            optional_columns = [name for name in ("label_name", "class_name") if name not in cells and "label" in cells]
            self._columns = [*cells, *optional_columns]
            writer.writerow(self._columns)
        writer.writerow([_format_cell(cells.get(name, "")) for name in self._columns])
        return text.getvalue().encode()


def _format_cell(cell: object) -> object:
    return json.dumps(cell, ensure_ascii=False) if isinstance(cell, list | bool) else cell


def _name_class(key: str, label_value: object, class_names: tuple[str, ...] | None, label: Feature) -> dict[str, str]:
    """Return {key: name of the class} if the value is a label whose class has a name, else {}.

    Args:
        key: key of the result.
        label_value: label, counted from the dataset's label offset; a list or a string has no class.
        class_names: names of the dataset's classes, or None.
        label: feature with the true label.
    """
    if class_names is None or not isinstance(label_value, int):
        return {}
    index = label_value - label.label_offset
    return {key: class_names[index]} if 0 <= index < len(class_names) else {}


def _convert_to_json(value: Array, name: str) -> Any:
    """Return a predicted value as JSON: a number, a string, or nested lists of these; NaN and infinity as strings.

    Raises:
        UsageError: the value has complex numbers.
    """
    if isinstance(value, np.ndarray):
        return [_convert_to_json(element, name) for element in value]
    if isinstance(value, bytes):
        return value.decode(errors="backslashreplace")
    if isinstance(value, (str, bool, int)):
        return value
    if np.issubdtype(type(value), np.integer) or isinstance(value, np.bool_):
        return value.item()
    if isinstance(value, np.complexfloating):
        raise UsageError(
            f"The prediction {name!r} cannot be written (got {value.dtype.name}, expected real numbers or text). Predict its parts."
        )
    # The shortest digits that round-trip in the value's precision. JSON has no number for NaN and infinity.
    number = float(str(value))
    return number if math.isfinite(number) else str(number)

"""Predictions as JSON Lines or CSV: an object or a row for each record, next to what is known of the record.

index         the record's number in the split, from 0
filename      the file that the record was made from, where the record says so
label         its true label, if it has one
label_name    the name of that class, where classes have names
predictions   what the model predicts, by name
class_name    the name of the class in predictions["classes"], where both are there

A file whose name ends in .csv has these columns, and in place of predictions one for each of them, called predictions.NAME where a
column has its name; what is no single number or text stands there as JSON. Its columns are those of the first record.
"""

from __future__ import annotations

import csv
import io
import itertools
import json
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from tpudata.errors import UsageError
from tpudata.format import Dataset, Feature
from tpudata.storage import storage_for

_FILENAME = "image/filename"
_CLASSES = "classes"
# Of CSV, also where a record has no such value.
_OWN_COLUMNS = ("index", "filename", "label", "label_name", "class_name")


def write_predictions(
    path: str,
    predictions: Iterable[Mapping[str, Any]],
    dataset: Dataset,
    split: str,
    label: Feature | None,
    limit: int | None = None,
) -> tuple[int, int | None]:
    """Write the file, whole or not at all.

    Args:
        path: the file to write, as CSV where its name ends in .csv.
        predictions: for each record in the split's order, arrays by name.
        dataset: where the records are.
        split: which of its splits.
        label: the feature that holds the true label.
        limit: how many records at most; None for all of the split.

    Returns:
        How many were written, and how many of them have the predicted class as their true label; None if a label or
        `classes` is missing.

    Raises:
        ValueError: there are fewer or more predictions than records.
        UsageError: a prediction is neither number nor text.
        StorageError: the file could not be written.
    """
    names = dataset.labels()
    records = itertools.islice(dataset.examples(split), limit)
    written = right = 0
    judged = label is not None
    formatted = line_format(path)
    with storage_for(path).create(path) as file:
        for index, (record, predicted) in enumerate(zip(records, itertools.islice(predictions, limit), strict=True)):
            line: dict[str, Any] = {"index": index}
            if filename := record.get(_FILENAME):
                line["filename"] = _json(filename[0], "filename")
            values = {name: _json(value, name) for name, value in predicted.items()}
            guess = values.get(_CLASSES)
            if label is not None:
                truth = record[label.name][0]
                line["label"] = truth
                line |= _named("label_name", truth, names, label)
                line |= _named("class_name", guess, names, label)
                right += guess == truth
            judged = judged and isinstance(guess, int)
            line["predictions"] = values
            file.write(formatted(line))
            written += 1
    return written, right if judged else None


def line_format(path: str) -> Callable[[dict[str, Any]], bytes]:
    """Return the formatter of one line after the other: CSV if the path ends in .csv, else JSON Lines."""
    return _Csv() if path.lower().endswith(".csv") else _json_line


def _json_line(line: dict[str, Any]) -> bytes:
    return json.dumps(line, ensure_ascii=False, allow_nan=False).encode() + b"\n"


class _Csv:
    """Formats lines as rows of CSV, the first one below the columns' names."""

    def __init__(self) -> None:
        self._columns: list[str] = []

    def __call__(self, line: dict[str, Any]) -> bytes:
        cells = {name: value for name, value in line.items() if name != "predictions"}
        predicted = line.get("predictions", {})
        cells |= {f"predictions.{name}" if name in _OWN_COLUMNS else name: value for name, value in predicted.items()}
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        if not self._columns:
            # A class may have no name in the first record, and have one later.
            named = [name for name in ("label_name", "class_name") if name not in cells and "label" in cells]
            self._columns = [*cells, *named]
            writer.writerow(self._columns)
        writer.writerow([_cell(cells.get(name, "")) for name in self._columns])
        return text.getvalue().encode()


def _cell(value: Any) -> Any:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, list | bool) else value


def _named(key: str, value: Any, names: tuple[str, ...] | None, label: Feature) -> dict[str, str]:
    """Return `{key: class name}` if the value is a label that has one, else an empty dict."""
    if names is None or not isinstance(value, int):
        return {}
    number = value - label.label_offset
    return {key: names[number]} if 0 <= number < len(names) else {}


def _json(value: Any, name: str) -> Any:
    """Return a predicted value as JSON: nested lists of numbers and text.

    Raises:
        UsageError: the value is of another kind.
    """
    if isinstance(value, np.ndarray):
        return [_json(item, name) for item in value]
    if isinstance(value, bytes):
        return value.decode(errors="backslashreplace")
    if isinstance(value, (str, bool, int)):
        return value
    if np.issubdtype(type(value), np.integer) or isinstance(value, np.bool_):
        return value.item()
    if isinstance(value, np.complexfloating):
        raise UsageError(
            f"The prediction {name!r} is {value.dtype.name}, and a file takes numbers and text: predict its parts."
        )
    # The shortest digits that give the value back in its own precision; JSON has no number for what is not finite.
    number = float(str(value))
    return number if math.isfinite(number) else str(number)

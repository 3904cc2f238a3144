"""Predictions as JSON lines and CSV, next to labels and names of files.

Tests make up predictions of each kind, which no bundled model has.
"""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.helpers.digits import write_digits
from tpudata.errors import UsageError
from tpudata.format import open_dataset
from tpudata.train.outputs.predictions import write_predictions


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_lines_join_predictions_with_labels_and_file_names(digits_dataset: Path, tmp_path: Path) -> None:
    dataset = open_dataset(str(digits_dataset))
    truth = [example["image/class/label"][0] for example in dataset.examples("validation")]
    guesses = [0 if number % 3 == 0 else int(label) for number, label in enumerate(truth)]
    rows = [{"classes": np.int32(guess), "probabilities": np.array([0.1, 0.9], np.float32)} for guess in guesses]
    path = tmp_path / "out" / "p.jsonl"
    label = dataset.manifest.feature("image/class/label")
    written, right = write_predictions(str(path), iter(rows), dataset, "validation", label)
    assert written == 90
    assert right == sum(guess == label for guess, label in zip(guesses, truth, strict=True))
    lines = _lines(path)
    assert [line["index"] for line in lines] == list(range(90))
    assert [line["filename"] for line in lines] == [f"{number:04d}.png" for number in range(200, 290)]
    assert [line["label"] for line in lines] == truth
    assert [line["label_name"] for line in lines] == [str(label) for label in truth]
    assert [line["class_name"] for line in lines] == [str(guess) for guess in guesses]
    assert lines[1]["predictions"] == {"classes": guesses[1], "probabilities": [0.1, 0.9]}


def test_limit_takes_no_further_predictions(digits_dataset: Path, tmp_path: Path) -> None:
    dataset = open_dataset(str(digits_dataset))
    taken = []

    def rows() -> Any:
        for number in range(90):
            taken.append(number)
            yield {"score": np.float32(number)}

    path = tmp_path / "p.jsonl"
    assert write_predictions(str(path), rows(), dataset, "validation", None, max_records=4) == (4, None)
    assert taken == [0, 1, 2, 3]
    assert [set(line) for line in _lines(path)] == [{"index", "filename", "predictions"}] * 4


@pytest.mark.parametrize("count", [89, 91])
def test_a_wrong_number_of_predictions_writes_nothing(count: int, digits_dataset: Path, tmp_path: Path) -> None:
    dataset = open_dataset(str(digits_dataset))
    path = tmp_path / "p.jsonl"
    with pytest.raises(ValueError, match="zip"):
        write_predictions(str(path), [{"x": np.int32(0)}] * count, dataset, "validation", None)
    assert list(tmp_path.iterdir()) == []


def test_names_labels_with_an_offset(tmp_path: Path) -> None:
    write_digits(tmp_path, {"train": 3}, label_offset=1)
    dataset = open_dataset(str(tmp_path))
    label = dataset.manifest.feature("image/class/label")
    path = tmp_path / "p.jsonl"
    rows = [{"classes": np.int32(1)}, {"classes": np.int32(0)}, {"classes": np.int32(3)}]
    assert write_predictions(str(path), rows, dataset, "train", label) == (3, 2)
    lines = _lines(path)
    assert [(line["label"], line["label_name"]) for line in lines] == [(1, "0"), (2, "1"), (3, "2")]
    # 0 is "background" there, and has no name.
    assert [line.get("class_name") for line in lines] == ["0", None, "2"]


def test_writes_values_of_every_kind_as_json(tmp_path: Path) -> None:
    write_digits(tmp_path, {"train": 1})
    row = {
        "int": np.int64(2**40),
        "bool": np.bool_(True),
        "text": "grüße".encode(),
        "third": np.float32(1) / np.float32(3),
        "half": np.float16(0.1),
        "matrix": np.array([[1, 2], [3, 4]], np.int32),
        "bad": np.array([np.nan, np.inf, -np.inf]),
    }
    path = tmp_path / "p.jsonl"
    write_predictions(str(path), [row], open_dataset(str(tmp_path)), "train", None)
    (line,) = _lines(path)
    got = line["predictions"]
    assert got.pop("third") == pytest.approx(1 / 3, abs=1e-7)
    assert got == {
        "int": 2**40,
        "bool": True,
        "text": "grüße",
        "half": 0.1,
        "matrix": [[1, 2], [3, 4]],
        "bad": ["nan", "inf", "-inf"],
    }


def test_csv_prefixes_predictions_named_like_its_columns(digits_dataset: Path, tmp_path: Path) -> None:
    dataset = open_dataset(str(digits_dataset))
    label = dataset.manifest.feature("image/class/label")
    rows = [{"label": np.float32(0.5), "index": np.int32(7), "score": np.array([1, 2])}] * 2
    path = tmp_path / "p.CSV"
    write_predictions(str(path), rows, dataset, "validation", label, max_records=2)
    with path.open(newline="") as file:
        first, _ = csv.DictReader(file)
    assert (first["index"], first["predictions.index"], first["predictions.label"]) == ("0", "7", "0.5")
    assert (first["label"], first["score"]) == (
        str(next(dataset.examples("validation"))["image/class/label"][0]),
        "[1, 2]",
    )


def test_rejects_predictions_that_are_neither_numbers_nor_text(digits_dataset: Path, tmp_path: Path) -> None:
    dataset = open_dataset(str(digits_dataset))
    with pytest.raises(UsageError, match=r"The prediction 'wave' cannot be written \(got complex64"):
        write_predictions(str(tmp_path / "p"), [{"wave": np.complex64(1j)}] * 90, dataset, "validation", None)
    assert not (tmp_path / "p").exists()

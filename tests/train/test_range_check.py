"""Labels and token ids beyond a model's outputs.

Tests pass batches of shares and of any numbers, which no small dataset feeds.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.helpers.datasets import write_dataset
from tests.helpers.digits import write_digits
from tests.train.jobs import train_job
from tests.train.test_own_models import OWN_MODEL
from tpudata.errors import FeatureError
from tpudata.format import Dataset, Feature, open_dataset
from tpudata.format.read_errors import translate_reader_error
from tpudata.train.options.train_options import TrainOptions
from tpudata.train.range_check import RangeCheckedInput, make_value_ranges

LABEL = Feature("image/class/label", "int64", "int64", num_classes=3, label_offset=1)


@pytest.fixture(scope="module")
def dataset(digits_dataset: Path) -> Dataset:
    return open_dataset(str(digits_dataset))


def _run(dataset: Dataset, model: str, params: dict[str, Any], *batch: Any) -> None:
    options = TrainOptions(model, "d", "m")
    ranges = make_value_ranges(options, dataset, "train", None if "vocab_size" in params else LABEL, params)
    element = tf.nest.map_structure(tf.constant, batch if len(batch) > 1 else batch[0])
    made = RangeCheckedInput(lambda *_: tf.data.Dataset.from_tensors(element), ranges)({})
    assert made.element_spec == tf.data.Dataset.from_tensors(element).element_spec
    list(made)


@pytest.mark.parametrize(
    ("batch", "found"),
    [
        (({"image": [0.0] * 3}, [1, 4, 2]), "4"),
        (({"image": [0.0] * 3}, [1, 0, 2]), "0"),
        (({"image": [0.0] * 3}, [-7, 9, 2]), "-7"),
        # In int32, it would be 1.
        (({"image": [0.0] * 2}, np.array([2**32 + 1, 2])), "4294967297"),
        # Shares of mixed labels: neither 4 nor 0 is a class.
        (({"image": [0.0] * 2}, [[0.0, 0.5, 0.0, 0.5], [0.0, 0.5, 0.0, 0.0]]), "another label"),
        (({"image": [0.0] * 2}, [[0.5, 0.5, 0.0, 0.0], [0.0, 0.5, 0.0, 0.5]]), "another label"),
    ],
)
def test_rejects_a_label_out_of_range_with_the_dataset_and_the_fix(dataset: Dataset, batch: Any, found: str) -> None:
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        _run(dataset, "mnist_cnn", {"num_classes": 3, "label_offset": 1}, *batch)
    error = translate_reader_error(caught.value)
    assert isinstance(error, FeatureError)
    assert str(error) == (
        "Feature image/class/label: a value does not fit mnist_cnn with num_classes=3 and label_offset=1 (got "
        f"{found} in {dataset.path}, split train, expected 1 to 3). Pass --param num_classes=N or --param label_offset=N, or "
        "convert the dataset again with --label-offset."
    )


def test_accepts_labels_in_range_and_labels_of_padding(dataset: Dataset) -> None:
    params = {"num_classes": 3, "label_offset": 1}
    _run(dataset, "mnist_cnn", params, {"image": [0.0] * 3}, [1, 2, 3])
    _run(dataset, "mnist_cnn", params, {"image": [0.0] * 3, "weights": [1.0, 0.0, 0.0]}, [1, 0, 9])
    _run(dataset, "mnist_cnn", params, {"image": [0.0]}, [[0.0, 0.25, 0.25, 0.5]])
    # Labels of a user's model are not checked.
    _run(dataset, "mine:model_fn", params, {"image": [0.0]}, [7])
    _run(dataset, "char_lstm", {"vocab_size": 4}, {"input_ids": [[0, 3]]})


def test_rejects_a_token_out_of_range(dataset: Dataset) -> None:
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"input_ids: a value does not fit .*got 4 in .* 0 to 3\)"):
        _run(dataset, "char_lstm", {"vocab_size": 4}, {"input_ids": [[0, 3], [2, 4]]}, [[3, 0], [4, 0]])


def test_the_command_reports_a_label_out_of_range_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "narrow_model.py").write_text(OWN_MODEL.replace('params["num_classes"]', "9"))
    # Labels of plain numbers: the number of classes is unknown.
    rows = [{"image_raw": bytes(64), "label": number % 12} for number in range(32)]
    features = [Feature("image_raw", "bytes", "uint8", (8, 8, 1), "raw"), Feature("label", "int64", "int64")]
    write_dataset(str(tmp_path / "numbers"), {"train": rows}, features, layout="raw", shards=1)
    assert train_job(tmp_path / "numbers", tmp_path / "n", "--mode=train", "--train-steps=1") == 1
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "error" in line]
    assert "Feature label: a value does not fit mnist_cnn with num_classes=10 and label_offset=0 (got 11 in " in line
    data = write_digits(tmp_path / "d", {"train": 40})
    flags = ["--mode=train", "--train-steps=3", "--image-size=6x4"]
    assert train_job(data, tmp_path / "m", *flags, model="narrow_model:model_fn") == 1
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "error" in line]
    assert line.startswith(
        f"tpudata: error: {data}: a label does not fit narrow_model:model_fn (got 9 in the loss, expected"
    )

"""The files in configs/: each names a bundled model, which the tests train briefly."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_iris

from tests.helpers.datasets import encode_image, write_dataset
from tests.helpers.label_maps import png_of
from tests.helpers.sequences import write_sequences
from tpudata.cli import main
from tpudata.format import Feature, open_dataset
from tpudata.models import model_names
from tpudata.train.model import find_label, make_model_params
from tpudata.train.options.flags import parse_options

CONFIGS = Path(__file__).parents[1] / "configs"
# Options that make each model small enough for a test.
SMALLER = {
    "char_lstm": ["--param=hidden_units=8"],
    "iris_mlp": [],
    "mnist_cnn": [],
    "resnet": ["--image-size=32x32", "--param=blocks=[1, 1]"],
    "text_classifier": ["--sequence-length=16"],
    "tiny_lm": ["--param=num_layers=1"],
    "unet": ["--crop=16", "--param=filters=4", "--param=num_classes=2"],
}
# The fixtures of their datasets.
DATA = {
    "char_lstm": "text",
    "iris_mlp": "irises",
    "text_classifier": "classed",
    "tiny_lm": "text",
    "unet": "masked",
}


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_sequences(tmp_path_factory.mktemp("text"), {"train": 24, "validation": 6})


@pytest.fixture(scope="module")
def irises(tmp_path_factory: pytest.TempPathFactory) -> Path:
    iris = load_iris()
    rows = [{"measured": x.tolist(), "label": int(y)} for x, y in zip(iris.data, iris.target, strict=True)]
    features = [Feature("measured", "float", "float32", (4,)), Feature("label", "int64", "int64", num_classes=3)]
    folder = tmp_path_factory.mktemp("irises")
    splits = {"train": rows[::2], "validation": rows[1::2]}
    return Path(write_dataset(str(folder), splits, features, layout="examples", shards=1, classes=3))


@pytest.fixture(scope="module")
def classed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("classed")
    (folder / "table.csv").write_text("text,label\n" + "".join(f"a text,{name}\n" for name in "abcd" * 6))
    flags = ["--field=text", "--label-field=label", "--tokenizer=bytes"]
    assert main(["convert", "text", f"--input={folder}/table.csv", f"--output={folder}/data", *flags]) == 0
    return folder / "data"


@pytest.fixture(scope="module")
def masked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    features = [
        Feature("image/encoded", "bytes", "uint8", (None, None, 3), "image"),
        Feature("image/segmentation/class/encoded", "bytes", "uint8", (None, None, 1), "label_map"),
    ]
    pixels = np.zeros((20, 24, 3), np.uint8)
    record = {features[0].name: encode_image(pixels), features[1].name: png_of(pixels[..., 0])}
    folder = tmp_path_factory.mktemp("masked")
    return Path(write_dataset(str(folder), {"train": [record] * 8}, features, layout="imagenet", shards=1))


def test_each_bundled_model_has_a_config() -> None:
    assert sorted(path.stem for path in CONFIGS.glob("*.yaml")) == model_names() == sorted(SMALLER)


@pytest.mark.parametrize("name", SMALLER)
def test_each_config_trains_its_model(name: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    path = CONFIGS / f"{name}.yaml"
    assert f"tpudata train --config configs/{name}.yaml" in path.read_text()
    data = request.getfixturevalue(DATA.get(name, "digits_dataset"))
    # The warm-up is longer than the run.
    flags = [f"--data={data}", f"--model-dir={tmp_path}", "--train-steps=2", "--batch-size=8", *SMALLER[name]]
    # tests/models evaluates each model.
    flags += [] if name == "mnist_cnn" else ["--mode=train"]
    assert main(["train", f"--config={path}", *flags]) == 0
    assert (tmp_path / "model.ckpt-2.index").is_file()
    assert (tmp_path / "evaluation.json").is_file() == (name == "mnist_cnn")
    assert json.loads((tmp_path / "train_config.json").read_bytes())["options"]["model"] == name


def test_decay_is_longer_than_a_warm_up_that_outlasts_the_run(text: Path, tmp_path: Path) -> None:
    """test_each_config_trains_its_model runs one."""

    def params(steps: int, **given: int) -> dict[str, Any]:
        warmup = [f"--param={name}={value}" for name, value in {"warmup_steps": 5, **given}.items()]
        flags = [f"--data={text}", f"--model-dir={tmp_path}", f"--train-steps={steps}", *warmup]
        options = parse_options([f"--config={CONFIGS / 'char_lstm.yaml'}", *flags], "train")
        dataset = open_dataset(options.data)
        return make_model_params(options, dataset, find_label(options, dataset))

    assert [params(steps)["decay_steps"] for steps in (5, 7)] == [6, 7]
    # Steps that the user set are not changed.
    assert params(5, decay_steps=4)["decay_steps"] == 4

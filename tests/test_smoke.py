"""One run of each main command and mode on small data, as scripts/check runs them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import tpudata
from tpudata.cli import main


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("smoke")
    for number in range(40):
        path = folder / "in" / "ab"[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = np.full((8, 8), 40 + 120 * (number % 2) + number, np.uint8)
        Image.fromarray(pixels).save(path)
    flags = ["--split=train=0.6,validation=0.4", "--shard-size=1kB"]
    assert main(["convert", "images", f"--input={folder}/in", f"--output={folder}/out", *flags]) == 0
    return folder / "out"


def test_converts_and_reads_images(dataset: Path) -> None:
    for command in ("inspect", "verify"):
        assert main([command, str(dataset)]) == 0
    input_fn = tpudata.make_input_fn(dataset, "train", training=True, seed=1)
    features, labels = next(iter(input_fn({"batch_size": 4})))
    assert (features["image"].shape, labels.shape) == ((4, 8, 8, 1), (4,))
    assert len(tpudata.RecordSource(dataset, "train")) + len(tpudata.RecordSource(dataset, "validation")) == 40


def test_converts_and_verifies_text(tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("one line\nand another\n" * 30)
    flags = ["--tokenizer=bytes", "--sequence-length=16", "--pack"]
    assert main(["convert", "text", f"--input={tmp_path}/in.txt", f"--output={tmp_path}/out", *flags]) == 0
    assert main(["verify", str(tmp_path / "out")]) == 0


def test_trains_evaluates_predicts_and_exports(dataset: Path, tmp_path: Path) -> None:
    common = ["--model=mnist_cnn", f"--data={dataset}", f"--model-dir={tmp_path}", "--batch-size=4", "--iterations=2"]
    assert main(["train", *common, "--train-steps=4", "--mode=train_and_eval"]) == 0
    for mode in ("eval", "predict", "export"):
        assert main(["train", *common, f"--mode={mode}"]) == 0

"""Training by the command line, and the files that it writes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import tensorflow as tf

from tpudata.cli import main


def train_job(data: Path, model_dir: Path, *flags: str, model: str = "mnist_cnn") -> int:
    common = [f"--model={model}", f"--data={data}", f"--model-dir={model_dir}", "--batch-size=32", "--iterations=10"]
    return main(["train", *common, *flags])


def read_json(path: Path) -> Any:
    return json.loads(path.read_bytes())


def newest_step(model_dir: Path) -> int:
    return int(tf.train.load_variable(tf.train.latest_checkpoint(str(model_dir)), "global_step"))

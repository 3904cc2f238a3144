"""Classification of texts: from a CSV with class names to accuracy and predictions."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np

from tests.train.jobs import read_json, train_job
from tpudata.cli import main

WORDS = {
    "sport": ("goal", "match", "team", "score", "coach"),
    "money": ("bank", "share", "profit", "loan", "price"),
    "food": ("bread", "soup", "salt", "oven", "taste"),
}


def write_csv(path: Path, count: int = 240) -> None:
    """Sentences of filler words, with two words of their class."""
    rng = np.random.default_rng(0)
    filler = ("the", "a", "of", "and", "was", "new", "some", "over", "then")
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["text", "topic"])
        for number in range(count):
            topic = sorted(WORDS)[number % 3]
            words = [*rng.choice(filler, size=rng.integers(3, 9)), *rng.choice(WORDS[topic], size=2)]
            rng.shuffle(words)
            rows.writerow([" ".join(words), topic])


def test_three_commands_learn_to_classify_the_texts_of_a_csv(tmp_path: Path) -> None:
    write_csv(tmp_path / "news.csv")
    source = [f"--input={tmp_path}/news.csv", "--field=text", "--label-field=topic", "--tokenizer=bytes"]
    assert main(["convert", "text", *source, f"--output={tmp_path}/data", "--split=train=0.8,validation=0.2"]) == 0
    length = ["--sequence-length=80", "--param=learning_rate=0.003"]
    data, model = tmp_path / "data", tmp_path / "model"
    assert train_job(data, model, *length, "--train-steps=80", "--mode=train", model="text_classifier") == 0
    assert train_job(data, model, *length, "--mode=eval", model="text_classifier") == 0
    # One of three classes by chance.
    assert read_json(model / "evaluation.json")["accuracy"] > 0.9
    params = read_json(model / "train_config.json")["params"]
    assert (params["num_classes"], params["vocab_size"]) == (3, 258)
    assert train_job(data, model, *length, "--mode=predict", "--num-predictions=9", model="text_classifier") == 0
    lines = [json.loads(line) for line in (model / "predictions.jsonl").read_text().splitlines()]
    assert {line["label_name"] for line in lines} <= {*WORDS}
    assert np.mean([line["label_name"] == line["class_name"] for line in lines]) > 0.7

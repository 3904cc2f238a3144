from __future__ import annotations

import pytest

from tpudata.console.nearest import nearest_name, suggestion

FLAGS = ["--shard-size", "--num-shards", "--resume", "--resize-shorter", "--quality", "--workers", "--seed", "--split"]


@pytest.mark.parametrize(
    ("got", "known", "near"),
    [
        ("--shard-sise", FLAGS, "--shard-size"),
        ("--shrad-size", FLAGS, "--shard-size"),
        ("--resumes", FLAGS, "--resume"),
        ("--Resume", FLAGS, "--resume"),
        ("--num-workers", FLAGS, "--workers"),
        ("--resize", FLAGS, "--resize-shorter"),
        ("convrt", ["convert", "train"], "convert"),
        ("evaluate", ["train", "eval"], "eval"),
        ("raet", ["rate", "seed"], "rate"),
        ("dense/kernel", ["dense_1/kernel", "dense_1/bias"], "dense_1/kernel"),
    ],
)
def test_a_slip_or_a_part_of_a_name_is_near(got: str, known: list[str], near: str) -> None:
    assert nearest_name(got, known) == near


@pytest.mark.parametrize(
    ("got", "known"),
    [
        ("zzz", ["convert", "train"]),
        ("stats", ["train", "verify"]),
        ("gpt2", ["mnist_cnn", "resnet"]),
        ("--colour", FLAGS),
        ("--split-seed-of-all", ["--speed-limit-of-x"]),
        ("--", FLAGS),
        ("", FLAGS),
        ("f1", ["accuracy", "loss"]),
    ],
)
def test_another_name_is_not_suggested(got: str, known: list[str]) -> None:
    assert nearest_name(got, known) is None
    assert suggestion(got, known) == ""


def test_suggestion() -> None:
    assert suggestion("convrt", ["convert", "train"]) == "; did you mean convert?"

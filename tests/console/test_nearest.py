"""Names that a message suggests for an unknown one.

Tests compare many pairs of names, which no command has.
"""

from __future__ import annotations

import pytest

from tpudata.console.nearest import find_nearest_name, suggestion

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
def test_suggests_the_name_behind_a_typo_or_a_part(got: str, known: list[str], near: str) -> None:
    assert find_nearest_name(got, known) == near


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
def test_suggests_no_unrelated_name(got: str, known: list[str]) -> None:
    assert find_nearest_name(got, known) is None
    assert suggestion(got, known) == ""


def test_suggestion_asks_did_you_mean() -> None:
    assert suggestion("convrt", ["convert", "train"]) == "; did you mean convert?"

"""The options of every conversion: which are rejected, and what decides the shards."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from beam_jobs.options import Budget, ConvertOptions, SplitShares
from tpudata.errors import UsageError


def test_paths_have_one_spelling() -> None:
    options = ConvertOptions("in//", "gs://b/out/")
    assert (options.input, options.output) == ("in", "gs://b/out")
    assert ConvertOptions("/", "gs://b/out").input == "/"


@pytest.mark.parametrize(
    ("input", "output", "inside"),
    [
        ("a", "a", True),
        ("a", "a/b", True),
        ("a", "./c/../a/b", True),
        ("/", "a", True),
        ("gs://b/in", "gs://b/in/out", True),
        ("a", "ab", False),
        ("a/b", "a", False),
        ("gs://b/in", "gs://b/input", False),
        ("gs://b/in", "b/in/out", False),
    ],
)
def test_an_output_inside_the_input_is_rejected(
    input: str, output: str, inside: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    if not inside:
        ConvertOptions(input, output)
        return
    with pytest.raises(UsageError, match="is inside the input"):
        ConvertOptions(input, output)


def test_a_link_does_not_hide_that_the_output_is_inside(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "in")
    with pytest.raises(UsageError, match="is inside the input"):
        ConvertOptions(str(tmp_path / "in"), str(tmp_path / "link" / "out"))


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"input": " "}, "--input is empty"),
        ({"output": ""}, "--output is empty"),
        ({"resume": True, "append": True}, "--resume and --append: choose one"),
        ({"shuffle": False, "seed": 1}, "--seed sets the shuffled order"),
        ({"num_shards": 7, "shards_multiple_of": 2}, "not a multiple of 2"),
        ({"on_bad_record": "ignore"}, "expected fail or skip"),
        ({"max_bad_records": Budget(count=1)}, "requires --on-bad-record=skip"),
        ({"label_offset": -1}, "got -1"),
        ({"label_offset": 2**31}, "got 2,147,483,648"),
        ({"compression": "zip"}, "zip"),
    ],
)
def test_options_that_do_not_fit_each_other(said: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        ConvertOptions(**{"input": "in", "output": "out", **said})


def test_what_decides_the_shards_is_told_apart_from_how_they_are_made() -> None:
    same = [
        ConvertOptions("in", "out"),
        ConvertOptions("other", "elsewhere", resume=True),
        ConvertOptions("in", "out", on_bad_record="skip"),
    ]
    assert all(options.deciding() == same[0].deciding() for options in same)
    others: list[dict[str, Any]] = [
        {"split": SplitShares.parse("a=0.5,b=0.5")},
        {"shard_bytes": 1},
        {"num_shards": 3},
        {"shards_multiple_of": 2},
        {"shuffle": False},
        {"seed": 1},
        {"label_offset": 1},
        {"compression": "gzip"},
    ]
    found = [ConvertOptions("in", "out", **said).deciding() for said in others]
    assert len({json.dumps(deciding, sort_keys=True) for deciding in [same[0].deciding(), *found]}) == 1 + len(others)

"""Options of every conversion: which are rejected, and which a resumed run cannot change."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import tpudata
from tpudata.errors import OutputError, SourceError, UsageError


@pytest.mark.parametrize(
    ("input", "output", "inside"),
    [
        ("a", "a", True),
        ("a", "a/b", True),
        ("a//", "a/b/", True),
        ("a", "./c/../a/b", True),
        ("/", "a", True),
        ("link", "a/b", True),
        ("a", "link/b", True),
        ("gs://b/in", "gs://b/in/out", True),
        ("a", "ab", False),
        ("a/b", "a", False),
    ],
)
def test_rejects_an_output_inside_the_input(
    input: str, output: str, inside: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "a")
    with pytest.raises(UsageError if inside else SourceError) as error:
        tpudata.convert_images(input, output)
    assert ("is inside the input" in str(error.value)) == inside


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"input": " "}, "input is empty"),
        ({"output": ""}, "output is empty"),
        ({"resume": True, "append": True}, "resume=True and append=True: choose one"),
        ({"shuffle": False, "seed": 1}, "seed sets the shuffled order"),
        ({"num_shards": 7, "shards_multiple_of": 2}, "not a multiple of 2"),
        ({"on_bad_record": "ignore"}, "expected fail or skip"),
        ({"max_bad_records": 1}, "requires on_bad_record=skip"),
        ({"label_offset": -1}, "got -1"),
        ({"label_offset": 2**31}, "got 2,147,483,648"),
        ({"compression": "zip"}, "zip"),
    ],
)
def test_rejects_invalid_and_conflicting_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        tpudata.convert_images(**{"input": "in", "output": "out", **options})


def test_resume_rejects_only_changed_options_that_decide_the_shards(tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("one\ntwo\nthree\nfour\n")
    where = (tmp_path / "in.txt", tmp_path / "out")
    manifest = tpudata.convert_text(*where)
    more: dict[str, Any] = {"on_bad_record": "skip", "max_bad_records": 1, "read_threads": 2, "retry_seconds": 1}
    assert tpudata.convert_text(*where, resume=True, **more) == manifest
    others: list[dict[str, Any]] = [
        {"split": {"a": 0.5, "b": 0.5}},
        {"shard_bytes": 1},
        {"num_shards": 3},
        {"shards_multiple_of": 2},
        {"shuffle": False},
        {"seed": 1},
        {"compression": "gzip"},
    ]
    for options in others:
        with pytest.raises(OutputError, match=f"{next(iter(options))}"):
            tpudata.convert_text(*where, resume=True, **options)

"""`--json` prints the keys that docs/reference/json.md lists, and nothing else on stdout."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.markdown import ROOT
from tests.helpers.pictures import make_pictures
from tpudata.cli import main

PAGE = (ROOT / "docs" / "reference" / "json.md").read_text()


def listed(command: str) -> set[str]:
    """The keys of a command's table."""
    section = re.split(r"(?m)^## ", PAGE.partition(f"\n## {command}\n")[2])[0]
    return {key for cell in re.findall(r"(?m)^\| (`.*?) \|", section) for key in re.findall(r"`(\w+)`", cell)}


@pytest.fixture
def printed(capsys: pytest.CaptureFixture[str]) -> Callable[..., dict[str, Any]]:
    def run(*words: str, code: int = 0) -> dict[str, Any]:
        assert main([*words, "--json"]) == code
        shown: dict[str, Any] = json.loads(capsys.readouterr().out)
        return shown

    return run


@pytest.fixture
def convert(tmp_path: Path) -> list[str]:
    """The arguments of a conversion of five pictures, one of them truncated."""
    make_pictures(tmp_path / "in", 5)
    next((tmp_path / "in").rglob("*.jp*g")).write_bytes(b"\xff\xd8\xff")
    return ["convert", "images", f"--input={tmp_path}/in", f"--output={tmp_path}/out", "--unlabelled"]


def test_conversions_print_the_documented_keys(
    convert: list[str], tmp_path: Path, printed: Callable[..., dict[str, Any]]
) -> None:
    plan = printed(*convert, "--dry-run")
    assert {*plan} == listed("tpudata convert --dry-run")
    assert (plan["inputs"], plan["splits"]["train"]["records"]) == (5, 5)
    result = printed(*convert, "--on-bad-record=skip", "--max-bad-records=1")
    assert {*result, "records_before"} == listed("tpudata convert")
    assert (result["output"], result["records"], sum(result["rejected"].values())) == (str(tmp_path / "out"), 4, 1)
    shards = [path.stat().st_size for path in (tmp_path / "out").glob("train-*")]
    assert result["splits"] == {"train": {"records": 4, "shards": len(shards), "bytes": sum(shards)}}
    make_pictures(tmp_path / "more" / "new", 2, seed=9)
    added = printed("convert", "images", f"--input={tmp_path}/more", f"--output={tmp_path}/out", "--append")
    assert {*added} == listed("tpudata convert")
    assert (added["records"], added["records_before"], added["rejected"]) == (2, 4, {})
    assert added["splits"]["train"]["records"] == 2


def test_other_commands_print_the_documented_keys(
    convert: list[str], tmp_path: Path, printed: Callable[..., dict[str, Any]]
) -> None:
    printed(*convert, "--on-bad-record=skip", "--max-bad-records=1")
    dataset, page = str(tmp_path / "out"), tmp_path / "page.html"
    assert {*printed("inspect", dataset)} == listed("tpudata inspect")
    assert {*printed("verify", dataset)} == listed("tpudata verify")
    assert printed("report", dataset, f"--output={page}") == {"page": str(page), "bytes": page.stat().st_size}
    assert listed("tpudata report") == {"page", "bytes"}
    shard = next((tmp_path / "out").glob("train-*"))
    shard.write_bytes(shard.read_bytes()[:-1])
    (defect, *_) = printed("verify", dataset, code=1)["defects"]
    assert all(f"`{key}`" in PAGE for key in defect)


def test_quiet_conversions_print_only_warnings_and_errors(
    convert: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*convert, "--on-bad-record=skip", "--max-bad-records=1", "--quiet"]) == 0
    shown = capsys.readouterr()
    assert shown.out == ""
    assert all(line.startswith("tpudata: warning: ") for line in shown.err.splitlines())
    assert main([*convert[:-1], "--quiet"]) != 0
    assert "tpudata: error: " in capsys.readouterr().err

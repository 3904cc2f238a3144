"""Values of options that are more than a number or a text: sizes, shares of splits, and budgets of bad records."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import tpudata
from beam_jobs import WriteTFRecordShards
from tests.beam_jobs.golden import one_pixel_png
from tpudata.errors import TpudataError, UsageError
from tpudata.format import open_dataset


@pytest.mark.parametrize(
    ("texts", "sizes"),
    [
        (("1", "1.5kB"), (1, 1500)),
        (("2 GB", "0.5KiB"), (2 * 10**9, 512)),
        (("64mib", "1MB"), (64 << 20, 10**6)),
    ],
)
def test_parses_sizes_with_units(texts: tuple[str, str], sizes: tuple[int, int], tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("a")
    more: dict[str, Any] = {"shard_bytes": texts[0], "document_bytes": texts[1]}
    manifest = tpudata.convert_text(tmp_path / "in.txt", tmp_path / "out", **more)
    assert (manifest.options["shard_bytes"], manifest.options["document_bytes"]) == sizes


@pytest.mark.parametrize("text", ["", "MB", "-1", "1TB", "1e3", "1..5MB", "0", "0.5", "0x10", "nan", "9" * 5000])
def test_rejects_invalid_sizes(text: str) -> None:
    with pytest.raises(UsageError, match=r"not a size|expected 1 byte or more"):
        WriteTFRecordShards("out", shard_size=text)


def test_splits_get_their_shares_and_keep_their_records(tmp_path: Path) -> None:
    lines = [f"line {number}" for number in range(4_000)]
    (tmp_path / "in.txt").write_text("\n".join(lines))
    found = []
    for name, split, share in (("one", "train=0.8,test=0.2", 0.2), ("two", "train=9/10,test=.1", 0.1)):
        tpudata.convert_text(tmp_path / "in.txt", tmp_path / name, split=split)
        dataset = open_dataset(str(tmp_path / name))
        parts = [{example["text"][0] for example in dataset.examples(part)} for part in ("train", "test")]
        assert {*parts[0], *parts[1]} == {line.encode() for line in lines}
        assert len(parts[0]) + len(parts[1]) == len(lines)
        assert len(parts[1]) == pytest.approx(share * len(lines), rel=0.15)
        found.append(parts[1])
    # What is in the smaller part was in the larger.
    assert found[1] < found[0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("train=", "not a share"),
        ("train=1/0", "not a share"),
        ("train=nan", "not a share"),
        ("train=1e999999999", "not a share"),
        ("train=0.5,train=0.5", "train is named twice"),
        ("train=1,test=0", "share of split test: out of range"),
        ("train=0.6,test=0.6", r"add up to 1 \(got 1\.2\)"),
        ("train=1e400", r"add up to 1 \(got more than 10\^9\)"),
        ("train=1e-400,test=1", r"add up to 1 \(got slightly more than 1\)"),
        ("train=0.3333333,test=0.6666666", r"add up to 1 \(got 0\.9999999\)"),
        ("a-b=1", "split name 'a-b'"),
        ("=1", "split name ''"),
    ],
)
def test_rejects_invalid_shares(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        WriteTFRecordShards("out", split=text)


def test_a_budget_is_a_count_or_an_exact_share(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for number in range(8):
        (tmp_path / "in" / f"{number}.png").write_bytes(b"none" if number < 2 else one_pixel_png(number))
    for budget, is_allowed in (("1", False), ("2", True), ("24.9%", False), ("25%", True)):
        try:
            tpudata.convert_images(
                tmp_path / "in",
                tmp_path / f"out-{budget}",
                unlabelled=True,
                on_bad_record="skip",
                max_bad_records=budget,
            )
        except TpudataError as error:
            assert not is_allowed, budget
            assert "max_bad_records" in str(error)  # noqa: PT017
        else:
            assert is_allowed, budget


@pytest.mark.parametrize(
    "text", ["", "-1", "0.5", "101%", "-1%", "x", "%", "nan", "inf%", "1e999999999", "1e-999999999%"]
)
def test_rejects_invalid_budgets(text: str) -> None:
    with pytest.raises(UsageError, match="expected a count such as 100 or a share"):
        tpudata.convert_images("in", "out", on_bad_record="skip", max_bad_records=text)

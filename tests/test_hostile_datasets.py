"""Changed dataset files with valid checksums: every command and reader reports one line or yields the right records."""

from __future__ import annotations

import random
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from beam_jobs.images import run as convert_images
from beam_jobs.text import run as convert_text
from tests.helpers.hostile import mutate
from tpudata import RecordSource, TpudataError, as_numpy, make_input_fn
from tpudata.cli import main
from tpudata.format import open_dataset

Records = dict[str, list[bytes]]
# Mutations of each dataset: those that run by default take a few seconds.
_FEW, _FEWER, _MANY = range(25), range(2), range(25, 1500)


class Hostile:
    """A dataset to be changed, and its correct contents."""

    def __init__(self, folder: Path, source: Path, kind: str) -> None:
        self.kind, self.source, self.good = kind, source, folder
        self.records = all_records(folder)

    def check(self, folder: Path, seed: int, capsys: pytest.CaptureFixture[str], *, feeds: bool) -> None:
        """Change a copy, and run what reads it."""
        dataset, out = folder / "dataset", folder / "out"
        shutil.copytree(self.good, dataset)
        words = mutate(dataset, random.Random(seed))

        def command(*argv: str) -> int:
            code = main(list(argv))
            captured = capsys.readouterr()
            errors = [line for line in captured.err.splitlines() if "error:" in line]
            # verify may list defects on stdout instead.
            allowed = ((0,) if not code else (0, 1)) if argv[0] == "verify" else (bool(code),)
            assert len(errors) in allowed, (words, argv, captured.err)
            return code

        # A smaller manifest, or a valid quarantine, is a dataset of fewer records.
        may_have_fewer = words.startswith(("manifest", "quarantine"))
        reads: list[Callable[[], Records]] = [lambda: all_records(dataset)]
        if feeds:
            reads.append(lambda: fed_records(dataset))
        for read in reads:
            found = outcome(read, words)
            for split, records in ({} if found is None else found).items():
                assert not Counter(records) - Counter(self.records.get(split, self.everything)), (words, split)
                assert may_have_fewer or records == self.records[split], (words, split)
        outcome(lambda: list(decoded_records(dataset)), words)
        for flags in ([], ["--json"]):
            command("inspect", str(dataset), *flags)
        command("verify", str(dataset))
        command("report", str(dataset), "--output", str(folder / "report.html"))
        if feeds:
            outcome(lambda: trained_batches(dataset), words)
            command("bench", str(dataset), "--batch-size", "4", "--seconds", "0.02")
            if command("reshard", str(dataset), "--output", str(out)) == 0:
                for split, records in all_records(out).items():
                    assert not Counter(records) - Counter(self.everything), (words, split)
            command("convert", self.kind, "--input", str(self.source), "--output", str(dataset), "--append")
        command("verify", str(dataset), "--quarantine")

    @property
    def everything(self) -> list[bytes]:
        return [record for records in self.records.values() for record in records]


def outcome(read: Callable[[], object], words: str) -> Records | None:
    """Return what a reader gives, or None if it ends in an error of one line."""
    try:
        found = read()
    except TpudataError as error:
        line = str(error)
    else:
        return found if isinstance(found, dict) else None
    assert "\n" not in line, (words, line)
    return None


def all_records(folder: Path) -> Records:
    splits = open_dataset(str(folder)).manifest.splits
    return {split: list(RecordSource(str(folder), split, decode=None)) for split in splits}


def decoded_records(folder: Path) -> Iterator[object]:
    for split in open_dataset(str(folder)).manifest.splits:
        yield from RecordSource(str(folder), split)


def fed_records(folder: Path) -> Records:
    found: Records = {}
    for split in open_dataset(str(folder)).manifest.splits:
        read = make_input_fn(str(folder), split, training=False, parse=lambda records: {"record": records})
        batches = list(as_numpy(read, 16))
        real = np.concatenate([batch["weights"] for batch in batches]) > 0
        found[split] = np.concatenate([batch["record"] for batch in batches])[real].tolist()
    return found


def trained_batches(folder: Path) -> object:
    batches = as_numpy(make_input_fn(str(folder), "train", training=True, seed=1), 4)
    return [next(batches) for _ in range(3)]


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Hostile:
    """Pictures in two splits of two shards, with classes, keys, an index for DALI, and a rejected input."""
    folder = tmp_path_factory.mktemp("images")
    pixels = np.random.default_rng(0)
    for name in ("cat", "dog"):
        (folder / "in" / name).mkdir(parents=True)
        for number in range(10):
            Image.fromarray(pixels.integers(0, 256, (6, 6, 3), np.uint8)).save(folder / "in" / name / f"{number}.png")
    bad = folder / "in" / "cat" / "bad.png"
    bad.write_bytes(b"no picture")
    flags = ("--num-shards=2", "--split=train=0.7,validation=0.3", "--dali-index")
    skip = ("--on-bad-record=skip", "--max-bad-records=1")
    assert convert_images(["--input", str(folder / "in"), "--output", str(folder / "out"), *flags, *skip]) == 0
    bad.unlink()
    return Hostile(folder / "out", folder / "in", "images")


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> Hostile:
    """Packed tokens in compressed shards, with the file of their tokenizer."""
    folder = tmp_path_factory.mktemp("tokens")
    (folder / "in.txt").write_text("".join(f"document number {number}\n" for number in range(40)))
    flags = ("--tokenizer=chars", "--num-shards=2", "--compression=gzip", "--sequence-length=16", "--pack")
    assert convert_text(["--input", str(folder / "in.txt"), "--output", str(folder / "out"), *flags]) == 0
    return Hostile(folder / "out", folder / "in.txt", "text")


@pytest.fixture
def hostile(request: pytest.FixtureRequest, kind: str) -> Hostile:
    found: Hostile = request.getfixturevalue(kind)
    return found


@pytest.mark.cases(2)
@pytest.mark.parametrize("kind", ["images", "tokens"])
@pytest.mark.parametrize(
    ("seeds", "feeds"),
    [
        (_FEW, False),
        (_FEWER, True),
        pytest.param(_MANY, False, marks=pytest.mark.matrix),
        pytest.param(range(100, 300), True, marks=pytest.mark.matrix),
    ],
    ids=["read", "fed", "many read", "many fed"],
)
def test_changed_files_end_in_one_line_or_yield_the_right_records(
    hostile: Hostile, tmp_path: Path, capsys: pytest.CaptureFixture[str], seeds: range, feeds: bool
) -> None:
    for seed in seeds:
        folder = tmp_path / "changed"
        folder.mkdir()
        hostile.check(folder, seed, capsys, feeds=feeds)
        shutil.rmtree(folder)

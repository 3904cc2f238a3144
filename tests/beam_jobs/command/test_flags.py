"""Flags become options; errors name a wrong flag.

Run options such as the retry time leave no trace in a dataset, so tests call the parser.
"""

from __future__ import annotations

import dataclasses
import importlib
from fractions import Fraction
from pathlib import Path

import pytest

from beam_jobs.command.option_parser import OptionParser, read_options
from beam_jobs.command.run_conversion import SHARED_FLAGS, parse_flags
from beam_jobs.options import Budget, ConvertOptions, RunOptions, SplitShares
from beam_jobs.run.runner import beam_flag_names
from beam_jobs.text import run as run_text
from tpudata.errors import SourceError, StorageError, UsageError


def new_parser() -> OptionParser:
    return OptionParser("job", "A job.", "", [ConvertOptions, RunOptions])


def parsed(*argv: str) -> ConvertOptions:
    return read_options(ConvertOptions, new_parser().parse(["--input=in", "--output=out", *argv]))


def test_options_without_flags_have_declared_defaults() -> None:
    assert parsed() == ConvertOptions("in", "out")


# Flags that set each option, and the value they set.
SAID = {
    "split": (["--split=train=0.75,test=1/4"], SplitShares({"train": Fraction(3, 4), "test": Fraction(1, 4)})),
    "shard_bytes": (["--shard-size=64MiB"], 64 << 20),
    "num_shards": (["--num_shards", "12"], 12),
    "shards_multiple_of": (["--shards-multiple-of=8"], 8),
    "on_bad_record": (["--on-bad-record=skip"], "skip"),
    "max_bad_records": (["--max-bad-records=7", "--on-bad-record=skip"], Budget(count=7)),
    "shuffle": (["--no-shuffle"], False),
    "seed": (["--seed=-3"], -3),
    "label_offset": (["--label-offset=1"], 1),
    "compression": (["--compression=gzip"], "gzip"),
    "resume": (["--resume"], True),
    "overwrite": (["--overwrite=true"], True),
    "append": (["--append"], True),
    "dali_index": (["--dali-index"], True),
    "read_threads": (["--read-threads=8"], 8),
    "retry_seconds": (["--retry-seconds=2.5"], 2.5),
}


def test_every_option_has_a_flag() -> None:
    assert {field.name for field in dataclasses.fields(ConvertOptions)} == {"input", "output", *SAID}


@pytest.mark.parametrize("name", SAID)
def test_each_flag_sets_only_its_option(name: str) -> None:
    flags, value = SAID[name]
    options = parsed(*flags)
    assert getattr(options, name) == value
    assert getattr(parsed(), name) != value
    others = {field for other, (said, _) in SAID.items() if set(said) & set(flags) for field in [other]}
    changed = {
        field.name
        for field in dataclasses.fields(options)
        if getattr(options, field.name) != getattr(parsed(), field.name)
    }
    assert changed <= others | {name}


def test_callers_can_rename_path_flags() -> None:
    parser = OptionParser("job", "A job.", "", [ConvertOptions], without=("input", "output"))
    parser.add_argument("--input", "--raw-data-dir", dest="input")
    parser.add_argument("--output", dest="output")
    flags = parser.parse(["--raw_data_dir=a", "--output=b"])
    assert read_options(ConvertOptions, flags) == ConvertOptions("a", "b")


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("--shard-size=0", "expected 1 byte or more"),
        ("--shard-size=1e400", "not a size"),
        ("--num-shards=0", "not a whole number of 1 or more"),
        ("--seed=x", "invalid int value"),
        ("--shuffle=maybe", "neither true nor false"),
        ("--compression=zip", r"unknown value \(got 'zip', expected none or gzip\)"),
        ("--split=a=1e999999999", "not a share"),
        ("--max-bad-records=1e999999999", "expected a count such as 100 or a share"),
        ("--workers=0", "not a whole number of 1 or more"),
        ("--shard-sice=1MB", "did you mean --shard-size"),
        ("--input=more", r"passed twice \(got 'in' and 'more'\)"),
        ("--output=other", "passed twice"),
    ],
)
def test_rejects_invalid_values_by_flag(flag: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as error:
        run_text(["--input=in", "--output=out", flag])
    assert flag.split("=")[0] in str(error.value)


@pytest.mark.parametrize("kind", ["images", "text"])
def test_rejects_an_unwritable_output_before_reading_the_input(kind: str, tmp_path: Path) -> None:
    run = importlib.import_module(f"beam_jobs.{kind}").run
    (tmp_path / "file").write_bytes(b"")
    flags = [f"--input={tmp_path / 'missing'}", f"--output={tmp_path / 'file' / 'out'}"]
    with pytest.raises(StorageError, match="/file/out could not be written: Not a directory"):
        run(flags)
    # A plan is made without writing.
    with pytest.raises(SourceError, match="/missing"):
        run([*flags, "--dry-run"])


def test_shared_flags_include_every_overlap_with_beam() -> None:
    beam = set(beam_flag_names())
    for command in ("images", "text", "reshard"):
        parser = importlib.import_module(f"beam_jobs.{command}").new_parser("program")
        assert {*parser.list_flag_names()} & beam <= {*SHARED_FLAGS}


@pytest.mark.parametrize("flags", [["--label", "image"], ["--label=image"]])
@pytest.mark.parametrize("runner", [[], ["--runner=DataflowRunner"]])
def test_rejects_flags_of_other_commands_that_beam_would_take(
    tmp_path: Path, flags: list[str], runner: list[str]
) -> None:
    (tmp_path / "a.txt").write_text("one\n")
    with pytest.raises(UsageError, match=rf"{flags[0].partition('=')[0]} is a flag of tpudata .* and of Apache Beam"):
        run_text([f"--input={tmp_path}/a.txt", f"--output={tmp_path}/out", *flags, *runner])
    assert not (tmp_path / "out").exists()


def test_rejects_abbreviated_flags(tmp_path: Path) -> None:
    for flag in ("--lab", "--labe=x", "--dry", "--run=x"):
        with pytest.raises(UsageError, match=f"unknown flag {flag.partition('=')[0]}"):
            run_text([f"--input={tmp_path}", f"--output={tmp_path}/out", flag])


def test_passes_labels_to_dataflow() -> None:
    flags = ["--input=in", "--output=out", "--runner=DataflowRunner", "--labels", "team=vision"]
    _, options = parse_flags(new_parser(), flags)
    assert options.get_all_options()["labels"] == ["team=vision"]


def test_dry_run_accepts_dashes_and_underscores(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.txt").write_text("one\n")
    for flag in ("--dry-run", "--dry_run"):
        run_text([f"--input={tmp_path}/a.txt", f"--output={tmp_path}/out", flag])
        assert "about each" in capsys.readouterr().out
        assert not (tmp_path / "out").exists()

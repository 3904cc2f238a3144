"""The `tpudata migrate` command, run on programs of tests."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import re
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from tpudata.cli import main


@dataclasses.dataclass(frozen=True)
class Note:
    """Line that is left to do.

    Attributes:
        line: its number before, as `--diff` prints it.
        new_line: its number in the rewritten file.
        text: the problem and the fix.
    """

    line: int
    new_line: int
    text: str


@dataclasses.dataclass(frozen=True)
class CommandResult:
    """A file afterwards, the number of places that were rewritten in it, and what is left to do."""

    text: str
    changes: int
    notes: tuple[Note, ...]


def migrate(text: str) -> CommandResult:
    """Run the command on a program of one file."""
    return migrate_files({"a.py": text})["a.py"]


def migrate_files(texts: Mapping[str, str]) -> dict[str, CommandResult]:
    """Run the command on the files of a program, by their names."""
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        for name, text in texts.items():
            Path(name).parent.mkdir(exist_ok=True)
            Path(name).write_text(text, encoding="utf-8", newline="")
        _, before, _ = run_command([*texts, "--diff"])
        code, after, counts = run_command([*texts])
        places = dict(re.findall(r"^(.+): (\d+) places? rewritten, \d+ left to do$", counts, re.MULTILINE))
        assert places.keys() == texts.keys(), counts
        migrations = {}
        for name in texts:
            lines = zip(_read_notes(name, before), _read_notes(name, after), strict=True)
            notes = tuple(Note(line, new_line, text) for (line, _), (new_line, text) in lines)
            migrations[name] = CommandResult(Path(name).read_bytes().decode(), int(places[name]), notes)
        assert code == int(any(migration.notes for migration in migrations.values()))
        return migrations


def run_command(argv: Sequence[str]) -> tuple[int, str, str]:
    """Return the exit code, standard output and standard error of the command."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(["migrate", *argv])
    return code, out.getvalue(), err.getvalue()


def _read_notes(name: str, output: str) -> list[tuple[int, str]]:
    return [(int(line), text) for line, text in re.findall(rf"^{re.escape(name)}:(\d+): (.*)$", output, re.MULTILINE)]

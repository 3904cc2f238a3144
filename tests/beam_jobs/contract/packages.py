"""Sources of an installed package, that of docs/convert/extending.md, as forms of the contract."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from beam_jobs import images, text
from tests.beam_jobs.contract.forms import IMAGE, Form, Item


def _pets(folder: Path, written: Sequence[Item]) -> list[str]:
    folder.mkdir(exist_ok=True)
    for item in written:
        (folder / f"{item.group}.{item.number}.png").write_bytes(item.picture)
    return ["--input", str(folder), "--source=pets"]


def _diary(folder: Path, written: Sequence[Item]) -> list[str]:
    folder.mkdir(exist_ok=True)
    (folder / "notes.txt").write_bytes(b"".join(b"@%b\n%b\n" % (item.group.encode(), item.line) for item in written))
    return ["--input", str(folder), "--source=diary"]


def _note(output: Path, example: Mapping[str, Any]) -> list[bytes]:
    del output
    return [value.removesuffix(b"\n") for value in example["text"]]


def _letters(folder: Path, written: Sequence[Item]) -> list[str]:
    folder.mkdir(exist_ok=True)
    with sqlite3.connect(folder / "letters.db") as database:
        database.execute("DROP TABLE IF EXISTS letters")
        database.execute("CREATE TABLE letters (letter TEXT)")
        rows = [(f"About {item.number}\n{item.text}",) for item in written]
        database.executemany("INSERT INTO letters VALUES (?)", rows)
    return ["--input", str(folder / "letters.db"), "--source=letters", "--field=text"]


INSTALLED_FORMS = [
    Form("package: pictures", images.run, _pets, IMAGE, is_installed=True, rank=1),
    Form("package: ranges of files", text.run, _diary, "text", is_installed=True, rank=1, read=_note),
    Form("package: rows of a database", text.run, _letters, "text", can_be_bad=False, is_installed=True, rank=1),
]

"""Bytes of files from an offset to the end, in chunks.

No command stops between listing a file and reading it, so tests call the function directly.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from beam_jobs.compression.streams import read_plain_chunks
from tests.beam_jobs.compression.test_files import LETTERS
from tpudata.errors import SourceError


def test_reads_chunks_from_the_middle_of_a_file_to_its_end(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(LETTERS)
    assert b"".join(read_plain_chunks(str(path), 17, 20_000)) == LETTERS[17:]
    assert list(read_plain_chunks(str(path), len(LETTERS), len(LETTERS))) == []


def test_rejects_a_file_truncated_after_it_was_listed(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(LETTERS[:-1])
    with pytest.raises(
        SourceError, match=rf"a was cut during the run \(got {len(LETTERS) - 1} bytes, expected {len(LETTERS)}"
    ):
        list(read_plain_chunks(str(path), 17, len(LETTERS)))
    path.write_bytes(b"")
    with pytest.raises(SourceError, match="a was cut during the run"):
        list(read_plain_chunks(str(path), 17, len(LETTERS)))

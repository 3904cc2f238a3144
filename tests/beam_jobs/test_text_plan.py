"""The printed plan of a text conversion, which includes duplicates."""

from __future__ import annotations

from pathlib import Path

import pytest

from beam_jobs.text import run


def test_plan_with_dedup_says_that_it_includes_duplicates(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.txt").write_text("one\ntwo\none\n")
    flags = [f"--input={tmp_path}/a.txt", f"--output={tmp_path}/out"]
    for dedup in ([], ["--dedup"]):
        assert run([*flags, *dedup, "--dry-run"]) == 0
        head, _, row, *note = capsys.readouterr().out.splitlines()
        assert head.startswith("3 documents, ")
        assert row.split()[1] == "3"
        assert [line.startswith("including duplicates: ") for line in note] == [True] * len(dedup)
    # The run omits them.
    assert run([*flags, "--dedup"]) == 0
    assert "documents   2; 1 duplicate omitted" in capsys.readouterr().out

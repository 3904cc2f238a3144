"""What a plan of text says, and what it cannot know."""

from __future__ import annotations

from pathlib import Path

import pytest

from beam_jobs.text import run


def test_a_plan_with_dedup_says_that_duplicates_are_in_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.txt").write_text("one\ntwo\none\n")
    flags = [f"--input={tmp_path}/a.txt", f"--output={tmp_path}/out"]
    for dedup in ([], ["--dedup"]):
        assert run([*flags, *dedup, "--dry-run"]) == 0
        head, _, row, *note = capsys.readouterr().out.splitlines()
        assert head.startswith("3 documents, ")
        assert row.split()[1] == "3"
        assert [line.startswith("including duplicates: ") for line in note] == [True] * len(dedup)
    # The run knows better.
    assert run([*flags, "--dedup"]) == 0
    assert "documents   2; 1 duplicate omitted" in capsys.readouterr().out

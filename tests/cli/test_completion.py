"""Completion in shells, and that it knows every command of the table."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tpudata.cli import COMMANDS, main


def script(shell: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["completion", shell]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["ve"], {"verify"}),
        (["convert", ""], {"images", "text"}),
        (["convert", "images", "--shard-"], {"--shard-size"}),
        (["train", "--use-"], {"--use-tpu"}),
        (["completion", ""], {"bash", "zsh", "fish"}),
        (["help", "tr"], {"train", "troubleshooting"}),
        (["inspect", "pic"], {"pictures"}),
        (["convert", "images", "--input", "pic"], {"pictures"}),
        (["train", "--config", "pic"], {"pictures"}),
    ],
)
def test_bash_completes_commands_flags_pages_and_paths(
    words: list[str], expected: set[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "tpudata"
    path.write_text(script("bash", capsys))
    (tmp_path / "pictures").mkdir()
    typed = " ".join(f"'{word}'" for word in ["tpudata", *words])
    program = (
        f'. {path}; COMP_WORDS=({typed}); COMP_CWORD={len(words)}; COMP_LINE="{" ".join(["tpudata", *words])}";'
        " COMP_POINT=${#COMP_LINE}; $(complete -p tpudata | sed 's/.*-F \\([^ ]*\\) .*/\\1/') tpudata '"
        f"{words[-1]}' x; printf '%s\\n' \"${{COMPREPLY[@]}}\""
    )
    done = subprocess.run(["bash", "-c", program], cwd=tmp_path, capture_output=True, text=True)
    assert {word.strip() for word in done.stdout.split() if not word.startswith("-h")} >= expected, done.stderr


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_zsh_and_fish_accept_the_script(shell: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = script(shell, capsys)
    assert all(name in text for name in COMMANDS)
    assert "--no-append" in text or "no-append" in text
    assert {"zsh": ":DIR:_files", "fish": "__fish_complete_path"}[shell] in text
    if shutil.which(shell):
        path = tmp_path / "script"
        path.write_text(text)
        assert subprocess.run([shell, "-n", str(path)]).returncode == 0


def test_rejects_unknown_shells(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "tcsh"]) == 2
    assert "invalid choice: 'tcsh' (choose from" in capsys.readouterr().err

"""The `tpudata` program: its help, its modules and its errors.

Tests read the private table of commands, to cover each one; one test reads the parser that each makes.
"""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tpudata import __version__
from tpudata.cli import COMMANDS, main
from tpudata.console.flags import FlagParser
from tpudata.errors import UsageError


def test_help_lists_every_command_and_each_has_a_module(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    for name in COMMANDS:
        assert f"\n  {name} " in shown
        assert callable(importlib.import_module(f"tpudata.cli.{name}").run)


@pytest.mark.parametrize("command", [*COMMANDS, "convert images"])
def test_every_command_has_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*command.split(), "--help"]) == 0
    assert f"usage: tpudata {command}" in capsys.readouterr().out


def _parser_of(command: str, monkeypatch: pytest.MonkeyPatch) -> FlagParser:
    """Return the parser of a command, caught when the command starts to parse."""
    caught: list[FlagParser] = []

    def catch(self: FlagParser, argv: Sequence[str], also_known: object = None) -> None:
        caught.append(self)
        raise UsageError("caught")

    with monkeypatch.context() as patch:
        patch.setattr(FlagParser, "parse_with_rest", catch)
        assert main(command.split()) == 2
    return caught[0]


@pytest.mark.parametrize(
    "command", [*(name for name in COMMANDS if name != "convert"), "convert images", "convert text"]
)
def test_no_boolean_flag_takes_the_next_word(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    parser = _parser_of(command, monkeypatch)
    # Flags that the command requires.
    required = [f"{name}=1" for name in ("--input", "--output", "--batch-size") if name in parser.list_flag_names()]
    # All flags without a value.
    names = [name for action in parser._actions if action.nargs == 0 for name in action.option_strings]
    names = [name for name in names if name not in ("-h", "--help")]
    assert bool(names) == (command not in ("index", "help", "completion"))
    for name in names:
        # DIR, or a superfluous word.
        for word in ("true", "false", "DIR"):
            _, alone = parser.parse_with_rest([*required, word])
            folder, rest = parser.parse_with_rest([*required, name, word])
            own = (
                *getattr(folder, "files", ()),
                *(getattr(folder, "inputs", None) or ()),
                getattr(folder, "folder", None),
            )
            assert word in (*rest, *own), f"{name} took {word}"
            assert rest == alone


def test_prints_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"tpudata {__version__}\n"


@pytest.mark.parametrize("words", [[], ["convert"]])
def test_rejects_a_missing_command(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "usage: tpudata" in shown.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["conver"], "unknown command 'conver'; did you mean convert? Known: convert,"),
        (["zzz"], "unknown command 'zzz'. Known: convert,"),
        (["--versoin"], "unknown flag '--versoin'; did you mean --version? Known: --help,"),
        (["convert", "image"], "unknown kind of input 'image'; did you mean images? Known: images"),
        (["convert", "--input", "x"], "The kind comes first"),
        (["inspect"], "tpudata inspect: the following arguments are required: DIR"),
        (["inspect", "x", "--jsn"], "unknown flag --jsn; did you mean --json? See: tpudata inspect --help"),
        (["inspect", ""], "tpudata inspect: DIR is empty; name the dataset's folder."),
        (["inspect", "x", "--records=-1"], "'-1' is not a whole number of 0 or more"),
        (["train", "--model-dri=x"], "tpudata train:"),
    ],
)
def test_wrong_usage_suggests_a_correction(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("tpudata: error: ")
    assert message in shown.err


@pytest.mark.parametrize("module", ["tpudata", "tpudata.cli"])
def test_runs_as_a_module(module: str, tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-m", module, "inspect", str(tmp_path)], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith(f"tpudata: error: {tmp_path} has no manifest.json")
    assert "Traceback" not in done.stderr


def test_help_and_inspect_load_no_tensorflow(digits_dataset: Path) -> None:
    program = (
        "import sys; from tpudata.cli import main\n"
        "for words in (['--help'], ['convert', '--help'], ['convert', 'images', '--help'], ['train', '--help'],\n"
        "              ['train', '--model=m'], ['inspect', sys.argv[1]]):\n"
        "    main(words)\n"
        "sys.exit('tensorflow' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program, str(digits_dataset)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr

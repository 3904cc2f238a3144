"""`tpudata completion SHELL`: a script that completes commands and flags, made from their parsers by shtab."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Sequence

from tpudata.cli import COMMANDS
from tpudata.cli.convert import KINDS
from tpudata.console.flags import FlagParser

_SHELLS = ("bash", "zsh", "fish")
_NAME = "tpudata"
# Instructions for using the script.
_USES = (
    "bash: tpudata completion bash > ~/.local/share/bash-completion/completions/tpudata",
    "zsh: tpudata completion zsh > DIR/_tpudata, where DIR is a folder of $fpath",
    "fish: tpudata completion fish > ~/.config/fish/completions/tpudata.fish",
)


def run(argv: Sequence[str]) -> int:
    """Print the script, and return the exit code 0."""
    import shtab

    shell = new_parser().parse(argv).shell
    print(shtab.complete(_join_commands(), shell))
    return 0


def new_parser() -> FlagParser:
    """Return the parser of the command's flags."""
    parser = FlagParser("tpudata completion", "Print a script that completes commands and flags in a shell.", _USES)
    parser.add_argument("shell", choices=_SHELLS, metavar="SHELL", help=", ".join(_SHELLS))
    return parser


def _join_commands() -> argparse.ArgumentParser:
    """Return one parser of all commands, as shtab takes it."""
    whole = argparse.ArgumentParser(_NAME)
    commands = whole.add_subparsers()
    for name, summary in COMMANDS.items():
        module = importlib.import_module(f"tpudata.cli.{name}")
        if name == "convert":
            kinds = commands.add_parser(name, help=summary).add_subparsers()
            for kind, about in KINDS.items():
                kinds.add_parser(kind, help=about, parents=[module.new_parser(kind)], add_help=False)
        elif name == "help":
            commands.add_parser(name, help=summary).add_argument("name", choices=[*COMMANDS])
        else:
            commands.add_parser(name, help=summary, parents=[module.new_parser()], add_help=False)
    return whole

"""`tpudata completion SHELL`: a script that completes commands, flags and paths, made from their parsers by shtab."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Sequence

from tpudata.cli import COMMANDS
from tpudata.cli.convert import KINDS
from tpudata.cli.pages import find_short_names, list_pages
from tpudata.console.flags import FlagParser

_SHELLS = ("bash", "zsh", "fish")
_NAME = "tpudata"
# How to install the script in each shell.
_INSTALLATIONS = (
    "bash: tpudata completion bash > ~/.local/share/bash-completion/completions/tpudata",
    "zsh: tpudata completion zsh > DIR/_tpudata, where DIR is a folder of $fpath",
    "fish: tpudata completion fish > ~/.config/fish/completions/tpudata.fish",
)


def run(argv: Sequence[str]) -> int:
    """Print the script, and return the exit code 0."""
    import shtab

    shell = new_parser().parse(argv).shell
    print(shtab.complete(_join_parsers(), shell))
    return 0


def new_parser() -> FlagParser:
    """Return the parser of the command's flags."""
    parser = FlagParser(
        "tpudata completion", "Print a script that completes commands and flags in a shell.", _INSTALLATIONS
    )
    parser.add_argument("shell", choices=_SHELLS, metavar="SHELL", help=", ".join(_SHELLS))
    return parser


def _join_parsers() -> argparse.ArgumentParser:
    """Return one parser with a subparser for each command, as shtab needs it."""
    root = argparse.ArgumentParser(_NAME)
    commands = root.add_subparsers()
    # `add_help=False`, since the parsers of commands have --help already.
    for name, summary in COMMANDS.items():
        module = importlib.import_module(f"tpudata.cli.{name}")
        if name == "convert":
            kinds = commands.add_parser(name, help=summary).add_subparsers()
            for kind, kind_summary in KINDS.items():
                parents = [_mark_paths(module.new_parser(kind))]
                kinds.add_parser(kind, help=kind_summary, parents=parents, add_help=False)
        elif name == "help":
            # Its parser takes any word; the names of commands and pages are completed.
            names = [*COMMANDS, *find_short_names(list_pages()).values()]
            commands.add_parser(name, help=summary).add_argument("name", choices=names)
        else:
            commands.add_parser(name, help=summary, parents=[_mark_paths(module.new_parser())], add_help=False)
    return root


def _mark_paths(parser: FlagParser) -> FlagParser:
    """Mark the arguments of a parser that are paths, so that shtab's script completes file names for them; return the parser."""
    import shtab

    for action in parser.list_path_actions():
        action.complete = shtab.FILE  # type: ignore[attr-defined]
    return parser

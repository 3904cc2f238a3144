"""The `tpudata` command.

Each subcommand is a module or folder of this package with `run(argv) -> int` and `new_parser()`; `convert` has
`new_parser(kind)`. A subcommand is imported only when it is called: `tpudata convert` never loads TensorFlow.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

from tpudata.console.interrupts import end_on_interrupt, interruptible_loading

__all__ = ["main"]

# Commands and their help. The module of a command has its name.
COMMANDS = {
    "convert": "make a dataset: raw files to TFRecord shards",
    "reshard": "rewrite datasets or TFRecord files: other shards, splits or compression, merged",
    "import": "make a dataset of TFRecords of other programs, or of TensorFlow Datasets; the same as reshard",
    "inspect": "show what is in a dataset",
    "report": "write one HTML page about a dataset: samples, classes, sizes, rejects",
    "verify": "re-read a dataset and list all damage",
    "index": "write the index that NVIDIA DALI and the tfrecord package read",
    "bench": "measure how fast a dataset is fed, stage by stage, and what limits it",
    "train": "train, evaluate, predict with or export a model on a dataset",
    "migrate": "rewrite programs for the original TPUEstimator: names of TensorFlow 1",
    "doctor": "check versions, devices, a TPU and gs://, and rehearse a model",
    "completion": "print a script that completes commands and flags in a shell",
    "help": "show the flags of a command, a page of the documentation, or the pages that mention a word",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the `tpudata` command and return its exit code: 0 done, 1 the data or the run failed, 2 wrong usage.

    Signals and a closed stdout have other exit codes, see `run_command`.

    Args:
        argv: the words after `tpudata`; None for the words of this process.
    """
    if argv is None:
        end_on_interrupt()
    # This import follows, so that Ctrl-C is handled before anything that takes time.
    from tpudata.console.process import run_command

    return run_command(_dispatch, argv)


def _dispatch(argv: Sequence[str]) -> int:
    """Run the command that the arguments begin with, or print the help or the version; return the exit code.

    Raises:
        UsageError: the command is unknown; the command may raise other errors.
    """
    from tpudata._version import __version__
    from tpudata.console.flags import end_sentence
    from tpudata.console.nearest import suggestion
    from tpudata.errors import UsageError

    if not argv:
        print(_format_help(), file=sys.stderr)
        return UsageError.exit_code
    name, arguments = argv[0], argv[1:]
    if name in ("-h", "--help"):
        print(_format_help())
        return 0
    if name == "--version":
        print(f"tpudata {__version__}")
        return 0
    # `tpudata help COMMAND` is `tpudata COMMAND --help`.
    if name == "help" and arguments[:1] and arguments[0] in COMMANDS:
        name, arguments = arguments[0], ["--help"]
    if name not in COMMANDS:
        is_flag = name.startswith("-")
        known_names = ["--help", "--version"] if is_flag else [*COMMANDS]
        unknown = end_sentence(f"unknown {'flag' if is_flag else 'command'} {name!r}{suggestion(name, known_names)}")
        raise UsageError(f"{unknown} Known: {', '.join(known_names)}. See: tpudata --help")
    with interruptible_loading():
        command = importlib.import_module(f"tpudata.cli.{name}")
    code: int = command.run(arguments)
    return code


def _format_help() -> str:
    """Return the usage, and all commands with their summaries."""
    width = max(map(len, COMMANDS))
    commands = "\n".join(f"  {name:<{width}}  {summary}" for name, summary in COMMANDS.items())
    return (
        f"usage: tpudata COMMAND [FLAGS]\n\ncommands:\n{commands}\n\n`tpudata COMMAND --help` lists the flags of a"
        " command, `tpudata help` the pages of the documentation; `tpudata --version` prints the version."
    )

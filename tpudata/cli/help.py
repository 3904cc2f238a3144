"""`tpudata help`: the arguments of a source of an installed package; `tpudata help COMMAND` is `tpudata COMMAND --help`."""

from __future__ import annotations

from collections.abc import Sequence

from tpudata.cli import COMMANDS
from tpudata.console.flags import FlagParser
from tpudata.console.nearest import suggestion
from tpudata.console.quiet import quiet_beam_loading
from tpudata.errors import MissingExtraError, UsageError


def run(argv: Sequence[str]) -> int:
    """Print the arguments of a source, and return the exit code 0.

    Raises:
        UsageError: there is no such command or source.
        MissingExtraError: Beam is not installed.
    """
    parser = FlagParser("tpudata help", "Show the flags of a command, or the arguments of a source.")
    parser.add_argument("name", metavar="NAME", help="a command, or the source of an installed package")
    name = parser.parse(argv).name
    try:
        with quiet_beam_loading():
            from beam_jobs.sources.installed_sources import DOCUMENTS, IMAGES, installed_names, load_source
            from beam_jobs.sources.own_arguments import describe_source
            from beam_jobs.sources.table import SOURCES, source_names
    except ModuleNotFoundError as error:
        raise MissingExtraError("The help of a source", "beam") from error
    kinds = [kind for group in (IMAGES, DOCUMENTS) if (kind := load_source(group, name)) is not None]
    if not kinds and name in SOURCES:
        raise UsageError(
            f"{name}: it takes no --source-arg. `tpudata convert images --help` lists the flags of all sources."
        )
    if not kinds:
        near = suggestion(name, [*COMMANDS, *source_names(), *installed_names(DOCUMENTS)])
        raise UsageError(
            f"{name!r} is neither a command nor a source of an installed package{near}. See: tpudata --help"
        )
    print(*(describe_source(name, kind) for kind in kinds), sep="\n\n")
    return 0

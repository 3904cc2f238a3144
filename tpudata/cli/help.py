"""`tpudata help`: pages of the documentation, and the arguments of a source of an installed package.

`tpudata help COMMAND` is `tpudata COMMAND --help`.
"""

from __future__ import annotations

import pydoc
import sys
from collections.abc import Sequence

from tpudata.cli import COMMANDS
from tpudata.cli.pages import SECTIONS, Page, all_pages, short_names
from tpudata.console.flags import FlagParser, sentence
from tpudata.console.nearest import suggestion
from tpudata.console.quiet import quiet_beam_loading
from tpudata.errors import MissingExtraError, UsageError


def run(argv: Sequence[str]) -> int:
    """Print a page, the arguments of a source, or the list of pages, and return the exit code 0.

    Raises:
        UsageError: there is no such command, page or source.
        MissingExtraError: the name is of neither, and Beam, which knows sources, is not installed.
    """
    name = new_parser().parse(argv).name
    pages = all_pages()
    names = short_names(pages)
    if name is None:
        _show(_format_contents(pages, names))
        return 0
    page_name = name.strip("/").removeprefix("docs/").removesuffix(".md")
    matches = [page for page in pages if page_name in (page.name, page.file.stem)]
    if len(matches) > 1:
        raise UsageError(
            f"{name!r} is several pages. See: {', '.join(f'tpudata help {page.name}' for page in matches)}"
        )
    _show(matches[0].text(names) if matches else _describe_source_arguments(name, [*names.values()]))
    return 0


def new_parser() -> FlagParser:
    """Return the parser of the command's flags."""
    parser = FlagParser("tpudata help", "Show the flags of a command, a page, or the arguments of a source.")
    parser.add_argument(
        "name", metavar="NAME", nargs="?", help="a command, a page, or the source of an installed package"
    )
    return parser


def _format_contents(pages: list[Page], names: dict[str, str]) -> str:
    """Return the pages by section, with their titles."""
    parts = ["tpudata help COMMAND shows the flags of a command, and tpudata help PAGE a page of:"]
    for section in SECTIONS:
        lines = [f"  {names[page.name]:<22}  {page.title}" for page in pages if page.name.startswith(f"{section}/")]
        if lines:
            parts.append("\n".join([f"{section}:", *lines]))
    if not pages:
        parts = ["This installation has no pages. See: tpudata --help"]
    return "\n\n".join(parts)


def _describe_source_arguments(name: str, pages: list[str]) -> str:
    """Return the arguments of a source.

    Args:
        name: the name that was asked for.
        pages: names of pages, of which one may be meant.
    """
    try:
        with quiet_beam_loading():
            from beam_jobs.sources.installed.installed_sources import DOCUMENTS, IMAGES, installed_names, load_source
            from beam_jobs.sources.installed.own_arguments import describe_source
            from beam_jobs.sources.source_table import SOURCES, source_names
    except ModuleNotFoundError as error:
        raise MissingExtraError("The help of a source", "beam") from error
    kinds = [kind for group in (IMAGES, DOCUMENTS) if (kind := load_source(group, name)) is not None]
    if not kinds and name in SOURCES:
        raise UsageError(
            f"{name}: it takes no --source-arg. `tpudata convert images --help` lists the flags of all sources."
        )
    if not kinds:
        did_you_mean = suggestion(name, [*COMMANDS, *pages, *source_names(), *installed_names(DOCUMENTS)])
        unknown = f"{name!r} is neither a command, a page, nor a source of an installed package{did_you_mean}"
        raise UsageError(f"{sentence(unknown)} See: tpudata help")
    return "\n\n".join(describe_source(name, kind) for kind in kinds)


def _show(text: str) -> None:
    """Print a text, page by page where a person reads it."""
    if sys.stdin.isatty() and sys.stdout.isatty():
        pydoc.pager(f"{text.rstrip()}\n")
    else:
        print(text.rstrip())

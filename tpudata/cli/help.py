"""`tpudata help`: pages of the documentation, the pages that mention a word, and the arguments of an installed source.

`tpudata help COMMAND` is `tpudata COMMAND --help`.
"""

from __future__ import annotations

import pydoc
import re
import sys
from collections.abc import Sequence

from tpudata.cli import COMMANDS
from tpudata.cli.pages import SECTIONS, Page, find_short_names, list_pages
from tpudata.console.flags import FlagParser, end_sentence
from tpudata.console.nearest import suggestion
from tpudata.console.quiet import quiet_beam_loading
from tpudata.errors import MissingExtraError, UsageError

# Pages that are listed for a word; more do not help to choose.
_MAX_PAGES = 8
# Score of a section for a word: 1 for each mention, and 10 if the heading has the word. At most 5 mentions count, since a table of
# many names is no better than a page about one name.
_MAX_MENTIONS = 5
_HEADING_SCORE = 10
# Characters of the column of short names in a list of pages.
_NAME_WIDTH = 22


def run(argv: Sequence[str]) -> int:
    """Print a page, the arguments of a source, or a list of the pages that mention a word or of all pages; return the exit code 0.

    Raises:
        UsageError: no command, page or source has the name, and no page mentions it as a word; or several pages have the name.
        MissingExtraError: no page mentions the word, and Beam, which knows the sources, is not installed.
    """
    name = new_parser().parse(argv).name
    pages = list_pages()
    short_names = find_short_names(pages)
    if name is None:
        _show(_format_contents(pages, short_names))
        return 0
    page_name = name.strip("/").removeprefix("docs/").removesuffix(".md")
    matches = [page for page in pages if page_name in (page.name, page.file.stem)]
    if len(matches) > 1:
        raise UsageError(
            f"{name!r} is several pages. See: {', '.join(f'tpudata help {page.name}' for page in matches)}"
        )
    if matches:
        _show(matches[0].render_text(short_names))
        return 0
    text = _describe_source_arguments(name) or _list_mentions(name, pages, short_names)
    if not text:
        raise _make_unknown_name_error(name, short_names)
    _show(text)
    return 0


def new_parser() -> FlagParser:
    """Return the parser of the command's flags."""
    parser = FlagParser("tpudata help", "Show the flags of a command, a page, or the pages that mention a word.")
    parser.add_argument(
        "name", metavar="NAME", nargs="?", help="a command, a page, a word, or the source of an installed package"
    )
    return parser


def _format_contents(pages: list[Page], short_names: dict[str, str]) -> str:
    """Return the list of all pages by section, with their titles; `short_names` maps full names of pages to short ones."""
    if not pages:
        return "This installation has no pages. See: tpudata --help"
    parts = [
        "tpudata help COMMAND shows the flags of a command, tpudata help WORD the pages on it, tpudata help PAGE a page of:"
    ]
    for section in SECTIONS:
        lines = [
            f"  {short_names[page.name]:<{_NAME_WIDTH}}  {page.title}"
            for page in pages
            if page.name.startswith(f"{section}/")
        ]
        if lines:
            parts.append("\n".join([f"{section}:", *lines]))
    return "\n\n".join(parts)


def _describe_source_arguments(name: str) -> str:
    """Return the arguments of the installed sources of a name; empty if no installed source has it, or without Beam."""
    try:
        with quiet_beam_loading():
            from beam_jobs.sources.installed.installed_sources import DOCUMENTS, IMAGES, load_source
            from beam_jobs.sources.installed.own_arguments import describe_source
    except ModuleNotFoundError:
        return ""
    sources = [source for group in (IMAGES, DOCUMENTS) if (source := load_source(group, name)) is not None]
    return "\n\n".join(describe_source(name, source) for source in sources)


def _list_mentions(word: str, pages: list[Page], short_names: dict[str, str]) -> str:
    """Return the list of the pages that mention a word, each with its best section, the best first; empty if none does.

    Args:
        word: the word, or its beginning; case is ignored.
        pages: all pages.
        short_names: the short name of each page, by its full name.
    """
    pattern = re.compile(rf"\b{re.escape(word)}", re.IGNORECASE)
    scored_lines: list[tuple[int, str]] = []
    for page in pages:
        scores = {
            heading: min(len(pattern.findall(text)), _MAX_MENTIONS) + _HEADING_SCORE * bool(pattern.search(heading))
            for heading, text in page.read_sections()
        }
        best = max(scores, key=lambda heading: scores[heading])
        if scores[best]:
            title = page.title if best == page.title else f"{page.title}: {best}"
            scored_lines.append((scores[best], f"  {short_names[page.name]:<{_NAME_WIDTH}}  {title}"))
    if not scored_lines:
        return ""
    # Pages with the same score stay in the order of the site.
    scored_lines.sort(key=lambda scored: -scored[0])
    count = f"{len(scored_lines)} pages, such as" if len(scored_lines) > _MAX_PAGES else "these pages"
    return "\n".join([f"{word!r} is on {count}:", *(line for _, line in scored_lines[:_MAX_PAGES])])


def _make_unknown_name_error(name: str, short_names: dict[str, str]) -> UsageError:
    """Return the error for a name that nothing has; its message suggests the nearest command, page or source.

    Without Beam, return the error that Beam is not installed. `short_names` maps full names of pages to short ones.
    """
    try:
        from beam_jobs.sources.installed.installed_sources import DOCUMENTS, list_installed_names
        from beam_jobs.sources.source_table import list_source_names
    except ModuleNotFoundError:
        # Beam is not an extra: tpudata itself requires it.
        return MissingExtraError("The help of a source", extra="")
    nearest = suggestion(
        name, [*COMMANDS, *short_names.values(), *list_source_names(), *list_installed_names(DOCUMENTS)]
    )
    unknown = f"{name!r} is neither a command, a page, nor a source of an installed package{nearest}"
    return UsageError(f"{end_sentence(unknown)} See: tpudata help")


def _show(text: str) -> None:
    """Print help, with a pager if stdin and stdout are a terminal."""
    if sys.stdin.isatty() and sys.stdout.isatty():
        pydoc.pager(f"{text.rstrip()}\n")
    else:
        print(text.rstrip())

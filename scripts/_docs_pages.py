"""Generated pages of the site: the flags of all commands, and the files at the root.

A hook of MkDocs; mkdocs.yml names it.
"""

from __future__ import annotations

import argparse
import importlib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from beam_jobs.command.option_parser import OptionParser
from tpudata.cli import COMMANDS
from tpudata.cli.convert import KINDS
from tpudata.console.flags import FlagParser
from tpudata.console.option import Option

ROOT = Path(__file__).resolve().parent.parent
# Files at the root that become pages of the site, by the paths of the pages.
_ROOT_FILES = {"reference/changelog.md": "CHANGELOG.md", "reference/contributing.md": "CONTRIBUTING.md"}


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the generated pages to the pages of docs/, and return all."""
    texts = {page: _adapt_links(page, (ROOT / name).read_text(encoding="utf-8")) for page, name in _ROOT_FILES.items()}
    texts["reference/commands.md"] = format_commands_page()
    for page, text in texts.items():
        files.append(File.generated(config, page, content=text))
    return files


def format_commands_page() -> str:
    """Return the reference of all commands: a section for each, with the flags of its parser."""
    parts = [
        "# Commands and flags\n",
        "Made from the parsers of the commands. Names take dashes or underscores (`--use_tpu` is "
        "`--use-tpu`) and are never abbreviated. A flag with `--no-` also takes a value: "
        "`--flag=true` is `--flag`, `--flag=false` is `--no-flag`.\n",
        "The flags of a conversion have keywords, for [calls from Python](../convert/python.md). Those "
        "that decide what a dataset holds are in its manifest, and a run with `--resume` needs the same "
        "ones. `--append` takes those that are marked so from the dataset, unless they are passed.\n",
    ]
    for words, parser in _list_parsers():
        parts += [f"## tpudata {' '.join(words)}\n", parser.description or "", "\n", _format_usage(parser)]
        parts += _format_tables(parser)
        # Without the line that names other topics of `tpudata help`, which are pages of the site.
        parts += [f"{_mark_code(text)}\n" for text in parser.closing if not text.startswith("More: ")]
    return "\n".join(parts)


def _list_parsers() -> Iterator[tuple[tuple[str, ...], FlagParser]]:
    """Yield the words of each command and its parser."""
    for command in COMMANDS:
        new_parser = importlib.import_module(f"tpudata.cli.{command}").new_parser
        if command == "convert":
            yield from (((command, kind), new_parser(kind)) for kind in KINDS)
        else:
            yield (command,), new_parser()


def _format_usage(parser: FlagParser) -> str:
    """Return a line of code with the positional arguments and the required flags of a command."""
    actions = [action for action in parser._actions if not action.option_strings or action.required]
    return f"    {' '.join([parser.prog, *map(_format_name, actions), '[FLAGS]'])}\n"


def _format_tables(parser: FlagParser) -> Iterator[str]:
    """Yield the lines of a table for each group of flags, with the keywords of the flags if the command is a conversion."""
    options = parser.options if isinstance(parser, OptionParser) else {}
    for group in parser._action_groups:
        actions = [action for action in group._group_actions if _is_shown(action)]
        if actions and options:
            yield f"**{group.title}**\n"
            yield "| Flag | Keyword | Decides what the dataset holds | Meaning |\n|---|---|---|---|"
        elif actions:
            yield "| Flag | Meaning |\n|---|---|"
        for action in actions:
            text = (action.help or "") % {**vars(action), "prog": parser.prog}
            keyword_cells = _format_keyword(options, action) if options else ()
            # Bars are escaped only outside of code, in which Python-Markdown shows the backslash.
            cells = [f"`{_format_name(action)}`", *keyword_cells, _mark_code(text).replace("|", "\\|")]
            yield f"| {' | '.join(cells)} |"
        yield ""


def _is_shown(action: argparse.Action) -> bool:
    return action.help is not argparse.SUPPRESS and not isinstance(action, argparse._HelpAction)


def _format_keyword(options: Mapping[str, Option], action: argparse.Action) -> tuple[str, str]:
    """Return the cells for the keyword of a flag, and for whether its option decides what the dataset holds."""
    option = options.get(action.dest)
    if option is None:
        # The inputs of reshard are words without a flag; the keyword is the singular of their name.
        return f"`{action.dest.removesuffix('s')}`", ""
    if option.stored is None:
        return f"`{option.name}`", ""
    return f"`{option.name}`", "yes, kept by append" if option.stored.schema else "yes"


def _format_name(action: argparse.Action) -> str:
    """Return the names of a flag and the placeholder of its value, or the placeholder of a positional argument."""
    value = action.metavar or ("{" + ",".join(map(str, action.choices)) + "}" if action.choices else "")
    if isinstance(value, tuple):
        value = " ".join(value)
    if not action.option_strings:
        return value or action.dest
    return ", ".join(action.option_strings) + (f" {value}" if value else "")


def _mark_code(text: str) -> str:
    """Return a help text for Markdown: flags and patterns as code, since their * would be emphasis, and < as an entity."""
    marked = re.sub(r"(?<![\w`])(--[\w-]+(?:=\w+)?|[^\s,;]*\*[^\s,;]*)", r"`\1`", text)
    return marked.replace("<", "&lt;")


def _adapt_links(page: str, text: str) -> str:
    """Return the text of a file at the root with links that are relative to `page`, a path below docs/."""
    up = "../" * page.count("/")
    text = re.sub(r"\]\(docs/", f"]({up}", text)
    for target_page, name in _ROOT_FILES.items():
        text = text.replace(f"]({name}", f"]({up}{target_page}")
    return text

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
# Files at the root by the page of the site that they become.
_AT_ROOT = {"reference/changelog.md": "CHANGELOG.md", "reference/contributing.md": "CONTRIBUTING.md"}


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the generated pages to those of docs/."""
    made = {page: _links_from(page, (ROOT / name).read_text(encoding="utf-8")) for page, name in _AT_ROOT.items()}
    made["reference/commands.md"] = commands_page()
    for page, text in made.items():
        files.append(File.generated(config, page, content=text))
    return files


def commands_page() -> str:
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
    for words, parser in _parsers():
        parts += [f"## tpudata {' '.join(words)}\n", parser.description or "", "\n", *_usage(parser), *_table(parser)]
        parts += [f"{_as_prose(text)}\n" for text in parser.closing if not text.startswith("More: ")]
    return "\n".join(parts)


def _parsers() -> Iterator[tuple[tuple[str, ...], FlagParser]]:
    for command in COMMANDS:
        new_parser = importlib.import_module(f"tpudata.cli.{command}").new_parser
        if command == "convert":
            yield from (((command, kind), new_parser(kind)) for kind in KINDS)
        else:
            yield (command,), new_parser()


def _usage(parser: FlagParser) -> Iterator[str]:
    words = [action for action in parser._actions if not action.option_strings or action.required]
    usage = " ".join([parser.prog, *(f"{_name(action)}" for action in words), "[FLAGS]"])
    yield f"    {usage}\n"


def _table(parser: FlagParser) -> Iterator[str]:
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
            cells = [f"`{_name(action)}`", *(_keyword(options, action) if options else ()), _escaped(_as_prose(text))]
            yield f"| {' | '.join(cells)} |"
        yield ""


def _is_shown(action: argparse.Action) -> bool:
    return action.help is not argparse.SUPPRESS and not isinstance(action, argparse._HelpAction)


def _keyword(options: Mapping[str, Option], action: argparse.Action) -> tuple[str, str]:
    """Return the keyword of a flag, and whether its option decides what the dataset holds."""
    option = options.get(action.dest)
    if option is None:
        # The inputs of reshard are words without a flag.
        return f"`{action.dest.removesuffix('s')}`", ""
    decides = "" if option.stored is None else "yes, kept by append" if option.stored.schema else "yes"
    return f"`{option.name}`", decides


def _name(action: argparse.Action) -> str:
    value = action.metavar or ("{" + ",".join(map(str, action.choices)) + "}" if action.choices else "")
    if isinstance(value, tuple):
        value = " ".join(value)
    if not action.option_strings:
        return value or action.dest
    return ", ".join(action.option_strings) + (f" {value}" if value else "")


def _escaped(text: str) -> str:
    # Outside of code: Python-Markdown shows the backslash in code.
    return text.replace("|", "\\|")


def _as_prose(text: str) -> str:
    """Return a help text with flags and patterns as code, which Markdown does not take for emphasis."""
    return re.sub(r"(?<![\w`])(--[\w-]+(?:=\w+)?|[^\s,;]*\*[^\s,;]*)", lambda found: f"`{found[0]}`", text).replace(
        "<", "&lt;"
    )


def _links_from(page: str, text: str) -> str:
    """Return a file's text with its links relative to `page`."""
    up = "../" * page.count("/")
    text = re.sub(r"\]\(docs/", f"]({up}", text)
    for name, other in ((name, other) for other, name in _AT_ROOT.items()):
        text = text.replace(f"]({name}", f"]({up}{other}")
    return text

"""Command line flags: argparse, with the rules that every command of tpudata follows.

Names take dashes or underscores (`--use_tpu` is `--use-tpu`) and are never abbreviated; booleans are `--flag`, `--no-flag` or
`--flag=true|false`, and never take the next word; an unknown flag is rejected with the nearest known one. Mistakes raise a
UsageError instead of exiting.
"""

from __future__ import annotations

import argparse
import contextlib
import re
import shutil
import textwrap
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, NoReturn

from tpudata.console.nearest import suggestion
from tpudata.errors import UsageError

_TRUE = ("true", "yes", "1")
_FALSE = ("false", "no", "0")
# Metavars of values that are paths.
_PATH_METAVARS = re.compile(r"(SRC|DIR|FILE|PATH)(\|\w+)*")
# Values that begin like a negative number; no flag does.
_NEGATIVE_VALUE = re.compile(r"-\.?\d")


class FlagParser(argparse.ArgumentParser):
    """An ArgumentParser with the rules that the module's docstring lists; flags are added with `add_argument`.

    Args:
        prog: the command as the user types it.
        description: one line on what it does.
        closing: paragraphs that `--help` prints below the flags, wrapped to the terminal.
        topics: pages of `tpudata help` about the command, which the last line names.

    Attributes:
        closing: `closing` and the line of the topics.
    """

    # Set on the class: argparse adds --help before `__init__` can set attributes.
    _group: argparse._ArgumentGroup | None = None

    def __init__(self, prog: str, description: str, closing: Sequence[str] = (), topics: Sequence[str] = ()) -> None:
        super().__init__(prog=prog, description=description, allow_abbrev=False)
        help_commands = "; ".join(f"tpudata help {topic}" for topic in topics)
        self.closing = (*closing, *([f"More: {help_commands}"] if help_commands else []))
        # Names of the boolean flags, which `add_switch` adds.
        self._switches: set[str] = set()

    @contextlib.contextmanager
    def group(self, title: str) -> Iterator[None]:
        """Put the flags that the context's body adds into a group of the help with this title."""
        self._group = self.add_argument_group(title)
        try:
            yield
        finally:
            self._group = None

    def add_argument(self, *names: str, **settings: Any) -> argparse.Action:
        """Add a flag or a positional argument, as argparse does, to the open `group` if there is one."""
        if self._group is None:
            return super().add_argument(*names, **settings)
        return self._group.add_argument(*names, **settings)

    def add_switch(self, name: str, *, default: bool | None, help: str, dest: str = "") -> None:
        """Add a boolean flag: `--name`, `--no-name` or `--name=true|false`.

        Args:
            name: the flag. If it begins with `--no-`, the help shows it and not its opposite.
            default: value without the flag.
            help: its line in the help.
            dest: name of its value; empty for the flag's name with underscores.
        """
        self._switches.add(name)
        dest = dest or name.removeprefix("--").replace("-", "_")
        if not name.startswith("--no-"):
            # With a default, some versions of Python add it to the help.
            self.add_argument(name, dest=dest, action=argparse.BooleanOptionalAction, default=None, help=help)
        else:
            self.add_argument(name, dest=dest, action="store_true", help=help)
            # `--no-name=false` is parsed as `--no-no-name`, see `_spell`.
            self.add_argument(_name_opposite(name), dest=dest, action="store_false", help=argparse.SUPPRESS)
        self.set_defaults(**{dest: default})

    def format_help(self) -> str:
        """Return the help: a usage of one line, the flags in groups, and the closing paragraphs."""
        words = [_describe_usage(action) for action in self._actions if action.required or not action.option_strings]
        # Positional arguments come before flags.
        words.sort(key=lambda word: word.startswith("-"))
        self.usage = " ".join(["%(prog)s", *words, "[FLAGS]"])
        # Wrapped like argparse's own text, two columns narrower than the terminal. A command that is split inside a path or a word
        # cannot be copied.
        wrapper = textwrap.TextWrapper(
            shutil.get_terminal_size().columns - 2, break_long_words=False, break_on_hyphens=False
        )
        return "\n".join([super().format_help(), *(f"{wrapper.fill(text)}\n" for text in self.closing)])

    def parse(self, argv: Sequence[str]) -> argparse.Namespace:
        """Parse the words after the command; all must be known.

        Raises:
            UsageError: a flag is unknown, a value is invalid or a required flag is missing.
        """
        flags, unparsed = self.parse_with_rest(argv, also_known=())
        self.reject_unknown(unparsed)
        return flags

    def parse_with_rest(
        self, argv: Sequence[str], also_known: Collection[str] | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Parse the known flags; return them and the other words, which are for another parser.

        Args:
            argv: the words after the command.
            also_known: names of flags that the other parser takes; None if they are unknown, so that no flag is rejected.

        Raises:
            UsageError: neither parser knows a flag, if `also_known` is not None; a value is invalid; or a required flag is missing.
        """
        # Words after "--" are not flags.
        end = list(argv).index("--") if "--" in argv else len(argv)
        words = self._join_negative_values([self._spell(word, also_known or ()) for word in argv[:end]])
        if also_known is not None:
            # Before argparse looks for required flags, since a message on a misspelt flag helps more than one on a missing flag.
            names = {*self.list_flag_names(), *also_known}
            unknown_flags = [word for word in words if word.startswith("--") and word.split("=", 1)[0] not in names]
            self.reject_unknown(unknown_flags, names)
        return super().parse_known_args([*words, *argv[end:]])

    def reject_unknown(self, unparsed: Sequence[str], also_known: Iterable[str] = ()) -> None:
        """Raise a UsageError that names the first unknown word and suggests the nearest flag; do nothing if there are none.

        Args:
            unparsed: the unknown words, which no parser took.
            also_known: names of flags that another parser takes, for the suggestion.
        """
        if not unparsed:
            return
        word = unparsed[0]
        if not word.startswith("-"):
            is_boolean_value = bool(self._switches) and word.lower() in (*_TRUE, *_FALSE)
            hint = f"; pass the value of a boolean with =, --FLAG={word}" if is_boolean_value else ""
            self.error(f"unexpected argument {word!r}{hint}")
        name = word.split("=", 1)[0]
        self.error(f"unknown flag {name}{suggestion(name.replace('_', '-'), [*self.list_flag_names(), *also_known])}")

    def list_flag_names(self) -> list[str]:
        """Return the names of all flags of this parser, such as `--shard-size`."""
        return [name for name in self._option_string_actions if name.startswith("--")]

    def list_path_actions(self) -> list[argparse.Action]:
        """Return the flags and positional arguments whose values are paths."""
        return [action for action in self._actions if _PATH_METAVARS.fullmatch(str(action.metavar))]

    def _spell(self, word: str, other_flags: Collection[str]) -> str:
        """Return a word as its parser spells it: `--use_tpu` as `--use-tpu`, `--use-tpu=false` as `--no-use-tpu`.

        Args:
            word: a word of the command line.
            other_flags: names of flags of another parser, which may have underscores.
        """
        name, equals, value = word.partition("=")
        if word.startswith("--"):
            name = self._spell_name(name, other_flags)
        if equals and name in self._switches:
            return name if self._parse_boolean(name, value) else _name_opposite(name)
        return name + equals + value

    def _join_negative_values(self, words: Sequence[str]) -> list[str]:
        """Return words with `--flag -5MB` as `--flag=-5MB`: argparse would take -5MB for a flag."""
        joined: list[str] = []
        for word in words:
            action = self._option_string_actions.get(joined[-1]) if joined else None
            if action is not None and action.nargs is None and _NEGATIVE_VALUE.match(word):
                joined[-1] += f"={word}"
            else:
                joined.append(word)
        return joined

    def _spell_name(self, name: str, other_flags: Collection[str]) -> str:
        """Return the known flag that a name stands for, such as `--use-tpu` for `--use_tpu`; the name itself if it is unknown."""
        own_flags = self.list_flag_names()
        dashed, underscored = name.replace("_", "-"), "--" + name[2:].replace("-", "_")
        # Our own flags come first: Beam also has a flag --dry_run.
        for spelling, flags in (
            (name, own_flags),
            (dashed, own_flags),
            (name, other_flags),
            (underscored, other_flags),
        ):
            if spelling in flags:
                return spelling
        return name

    def _parse_boolean(self, name: str, value: str) -> bool:
        """Return the boolean in `--name=value`; UsageError if the value is neither true nor false."""
        if value.lower() not in (*_TRUE, *_FALSE):
            self.error(f"argument {name}: {value!r} is neither true nor false")
        return value.lower() in _TRUE

    def error(self, message: str) -> NoReturn:
        """Raise a UsageError instead of exiting as argparse does."""
        raise UsageError(f"{self.prog}: {end_sentence(message)} See: {self.prog} --help")


def _describe_usage(action: argparse.Action) -> str:
    """Return an action in the usage: `--flag VALUE`, or only the value for a positional argument."""
    value = str(action.metavar or action.dest)
    if action.option_strings:
        return f"{action.option_strings[0]} {value}"
    word = value + ("..." if action.nargs in ("+", "*") else "")
    return word if action.required else f"[{word}]"


def _name_opposite(switch: str) -> str:
    """Return the name that sets a switch to false."""
    return "--no-" + switch.removeprefix("--")


def end_sentence(message: str) -> str:
    """Return a message with a full stop, unless it ends in a punctuation mark (a suggestion ends in a question mark)."""
    return message if message.endswith((".", "?", "!")) else f"{message}."


def flag_type(name: str, parse: Callable[[str], Any]) -> Callable[[str], Any]:
    """Return an argparse `type` that shows the message of a ValueError or UsageError which `parse` raises.

    Args:
        name: name of the value in argparse's messages.
        parse: function from the word after the flag to its value.
    """

    def convert(text: str) -> Any:
        try:
            return parse(text)
        except (ValueError, UsageError) as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    convert.__name__ = name
    return convert


def positive_int(text: str) -> int:
    """Parse an integer of 1 or more, as an argparse `type`."""
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of 1 or more")
    return value


def positive_float(text: str) -> float:
    """Parse a finite number above 0, as an argparse `type`."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return value


def height_width(text: str) -> tuple[int, int]:
    """Parse HEIGHTxWIDTH, or one number for a square, as an argparse `type`."""
    height, cross, width = text.lower().partition("x")
    if not (height.isdecimal() and (width.isdecimal() or not cross)):
        raise argparse.ArgumentTypeError(f"{text!r} is not HEIGHTxWIDTH, such as 224x224, or one number for a square")
    return int(height), int(width if cross else height)


def parse_pad(text: str) -> tuple[str, int]:
    """Return the name or pattern of features, and their number of entries, from a `--pad NAME=N`.

    Raises:
        ValueError: the argument has another form.
    """
    name, equals, length = text.rpartition("=")
    if not equals or not name or not length.isdecimal() or int(length) < 1:
        raise ValueError(f"{text!r} is not NAME=N, such as caption=5, with a whole number of 1 or more")
    return name, int(length)

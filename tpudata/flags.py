"""Command line flags: argparse, with the manners that every command of tpudata has.

Names take dashes or underscores (`--use_tpu` is `--use-tpu`), booleans are `--flag`, `--no-flag` or `--flag=true|false`, names are
never abbreviated, and an unknown flag is refused with the nearest known one. Mistakes raise UsageError; nothing exits.
"""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, NoReturn

from tpudata.errors import UsageError

_TRUE = ("true", "yes", "1")
_FALSE = ("false", "no", "0")


class FlagParser(argparse.ArgumentParser):
    """An ArgumentParser with the manners that the module's docstring lists; flags are added with `add_argument`.

    Args:
        prog: the command as a person types it.
        description: what it does, one line.
        epilog: printed below the flags by `--help`, as it stands.
    """

    def __init__(self, prog: str, description: str, epilog: str = "") -> None:
        super().__init__(
            prog=prog,
            description=description,
            epilog=epilog,
            allow_abbrev=False,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )

    def add_switch(self, name: str, *, default: bool, help: str) -> None:
        """Adds a boolean flag: `--name`, `--no-name` or `--name=true|false`."""
        dest = name.removeprefix("--").replace("-", "_")
        self.add_argument(
            name, dest=dest, nargs="?", const=True, default=default, type=_boolean, help=help, metavar="BOOL"
        )
        self.add_argument("--no-" + name.removeprefix("--"), dest=dest, action="store_false", help=argparse.SUPPRESS)

    def parse(self, argv: Sequence[str]) -> argparse.Namespace:
        """Parses all of `argv`.

        Raises:
            UsageError: a flag is unknown, a value does not fit or a required flag is missing.
        """
        flags, rest = self.parse_with_rest(argv, also_known=())
        self.refuse_unknown(rest)
        return flags

    def parse_with_rest(
        self, argv: Sequence[str], also_known: Collection[str] | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Parses what is known, and returns the rest of `argv` for another parser.

        Args:
            argv: the words after the command.
            also_known: names of flags that the other parser takes; with it, flags that neither knows are refused.
        """
        words = [_spelt(word, self.flag_names(), also_known or ()) for word in argv]
        if also_known is not None:
            # Looked at first: a misspelt flag is a better message than that the one it stands for is missing.
            known = {*self.flag_names(), *also_known}
            self.refuse_unknown([w for w in words if w.startswith("--") and w.split("=", 1)[0] not in known], known)
        return super().parse_known_args(words)

    def refuse_unknown(self, rest: Sequence[str], also_known: Iterable[str] = ()) -> None:
        """Raises UsageError for the first word that nobody knows, with the nearest flag.

        Args:
            rest: words that no parser took.
            also_known: names of flags that another parser takes, for the suggestion.
        """
        if not rest:
            return
        word = rest[0]
        if not word.startswith("-"):
            self.error(f"unexpected argument {word!r}")
        name = word.split("=", 1)[0]
        self.error(f"unknown flag {name}{suggestion(name.replace('_', '-'), [*self.flag_names(), *also_known])}")

    def flag_names(self) -> list[str]:
        """Every flag of this parser, such as `--shard-size`."""
        return [name for name in self._option_string_actions if name.startswith("--")]

    def error(self, message: str) -> NoReturn:
        """Raises UsageError in place of argparse's exit."""
        raise UsageError(f"{self.prog}: {sentence(message)} See: {self.prog} --help")


def suggestion(got: str, known: Iterable[str]) -> str:
    """`"; did you mean X?"` for the nearest known name, or nothing."""
    nearest = difflib.get_close_matches(got, list(known), n=1)
    return f"; did you mean {nearest[0]}?" if nearest else ""


def sentence(message: str) -> str:
    """The message with a full stop, where it does not end in a mark already (a suggestion ends in a question mark)."""
    return message if message.endswith((".", "?", "!")) else f"{message}."


def flag_type(name: str, parse: Callable[[str], Any]) -> Callable[[str], Any]:
    """An argparse `type` that shows the message of a ValueError or UsageError which `parse` raises.

    Args:
        name: what the value is called in argparse's own messages.
        parse: from the flag's text to its value.
    """

    def convert(text: str) -> Any:
        try:
            return parse(text)
        except (ValueError, UsageError) as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    convert.__name__ = name
    return convert


def positive_int(text: str) -> int:
    """An argparse `type`: an integer of 1 or more."""
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of 1 or more")
    return value


def height_width(text: str) -> tuple[int, int]:
    """An argparse `type`: HEIGHTxWIDTH, or one number for a square."""
    height, cross, width = text.lower().partition("x")
    if not (height.isdecimal() and (width.isdecimal() or not cross)):
        raise argparse.ArgumentTypeError(f"{text!r} is not HEIGHTxWIDTH, such as 224x224, or one number for a square")
    return int(height), int(width if cross else height)


def _boolean(text: str) -> bool:
    if text.lower() in _TRUE:
        return True
    if text.lower() in _FALSE:
        return False
    raise argparse.ArgumentTypeError(f"{text!r} is neither true nor false")


def _spelt(word: str, ours: Collection[str], others: Collection[str]) -> str:
    """A flag as its parser knows it: ours with dashes, another's as it stands among `others`; any other word untouched."""
    name, equals, value = word.partition("=")
    if not word.startswith("--") or name in ours or name in others:
        return word
    dashed, underscored = name.replace("_", "-"), "--" + name[2:].replace("-", "_")
    for spelling, known in ((dashed, ours), (underscored, others)):
        if spelling in known:
            return spelling + equals + value
    return word

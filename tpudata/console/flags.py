"""Command line flags: argparse, with the rules that every command of tpudata follows.

Names take dashes or underscores (`--use_tpu` is `--use-tpu`) and are never abbreviated; booleans are `--flag`, `--no-flag` or
`--flag=true|false`, and never take the next word; an unknown flag is rejected with the nearest known one. Mistakes raise a
UsageError instead of exiting.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, NoReturn

from tpudata.console.nearest import suggestion
from tpudata.errors import UsageError

_TRUE = ("true", "yes", "1")
_FALSE = ("false", "no", "0")


class FlagParser(argparse.ArgumentParser):
    """An ArgumentParser with the rules that the module's docstring lists; flags are added with `add_argument`.

    Args:
        prog: the command as the user types it.
        description: one line on what it does.
        epilog: text that `--help` prints verbatim below the flags.
    """

    def __init__(self, prog: str, description: str, epilog: str = "") -> None:
        super().__init__(
            prog=prog,
            description=description,
            epilog=epilog,
            allow_abbrev=False,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        self._switches: set[str] = set()

    def add_switch(
        self,
        name: str,
        *,
        default: bool | None,
        help: str,
        dest: str = "",
        add: Callable[..., argparse.Action] | None = None,
    ) -> None:
        """Add a boolean flag: `--name`, `--no-name` or `--name=true|false`; `add` is `add_argument` of its group if it has one."""
        self._switches.add(name)
        dest = dest or name.removeprefix("--").replace("-", "_")
        add = add or self.add_argument
        add(name, dest=dest, nargs="?", const=True, default=default, type=_boolean, help=help, metavar="BOOL")
        add("--no-" + name.removeprefix("--"), dest=dest, action="store_false", help=argparse.SUPPRESS)

    def parse(self, argv: Sequence[str]) -> argparse.Namespace:
        """Parse all of `argv`.

        Raises:
            UsageError: a flag is unknown, a value is invalid or a required flag is missing.
        """
        flags, rest = self.parse_with_rest(argv, also_known=())
        self.reject_unknown(rest)
        return flags

    def parse_with_rest(
        self, argv: Sequence[str], also_known: Collection[str] | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Parse the known flags, and return the rest of `argv` for another parser.

        Args:
            argv: the words after the command.
            also_known: names of flags that the other parser takes; with it, flags that neither knows are rejected.
        """
        # Words after "--" are not flags.
        end = list(argv).index("--") if "--" in argv else len(argv)
        words = [self._spelt(word, also_known or ()) for word in argv[:end]]
        if also_known is not None:
            # First, since a misspelt flag is a better message than a missing one.
            known = {*self.flag_names(), *also_known}
            self.reject_unknown([w for w in words if w.startswith("--") and w.split("=", 1)[0] not in known], known)
        return super().parse_known_args([*words, *argv[end:]])

    def reject_unknown(self, rest: Sequence[str], also_known: Iterable[str] = ()) -> None:
        """Raise a UsageError for the first of the unknown words, with the nearest flag.

        Args:
            rest: words that no parser took.
            also_known: names of flags that another parser takes, for the suggestion.
        """
        if not rest:
            return
        word = rest[0]
        if not word.startswith("-"):
            is_boolean = self._switches and word.lower() in (*_TRUE, *_FALSE)
            hint = f"; pass the value of a boolean with =, --FLAG={word}" if is_boolean else ""
            self.error(f"unexpected argument {word!r}{hint}")
        name = word.split("=", 1)[0]
        self.error(f"unknown flag {name}{suggestion(name.replace('_', '-'), [*self.flag_names(), *also_known])}")

    def flag_names(self) -> list[str]:
        """Return the names of all flags of this parser, such as `--shard-size`."""
        return [name for name in self._option_string_actions if name.startswith("--")]

    def _spelt(self, word: str, others: Collection[str]) -> str:
        """Return a flag in its parser's spelling (dashes for this one, `others` as given), and other words unchanged."""
        name, equals, value = word.partition("=")
        ours = self.flag_names()
        if word.startswith("--") and name not in ours:
            dashed, underscored = name.replace("_", "-"), "--" + name[2:].replace("-", "_")
            # First our own: Beam has a flag --dry_run, too.
            name = (
                dashed if dashed in ours else name if name in others else underscored if underscored in others else name
            )
        # argparse would take the next word as the value of a bare switch.
        return name + (equals + value or ("=true" if name in self._switches else ""))

    def error(self, message: str) -> NoReturn:
        """Raise a UsageError instead of exiting as argparse does."""
        raise UsageError(f"{self.prog}: {sentence(message)} See: {self.prog} --help")


def sentence(message: str) -> str:
    """Return the message with a full stop, unless it ends in a punctuation mark (a suggestion ends in a question mark)."""
    return message if message.endswith((".", "?", "!")) else f"{message}."


def flag_type(name: str, parse: Callable[[str], Any]) -> Callable[[str], Any]:
    """Return an argparse `type` that shows the message of a ValueError or UsageError which `parse` raises.

    Args:
        name: name of the value in argparse's messages.
        parse: function from the flag's text to its value.
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
    """Parse a number above 0, as an argparse `type`."""
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


def _boolean(text: str) -> bool:
    if text.lower() in _TRUE:
        return True
    if text.lower() in _FALSE:
        return False
    raise argparse.ArgumentTypeError(f"{text!r} is neither true nor false")

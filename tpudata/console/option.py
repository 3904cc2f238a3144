"""Options of commands: fields of frozen dataclasses, whose metadata describe the option completely.

    seed: int = option(0, Group.SHARDS, "seed of the shuffled order (default 0)", Value("N", int), stored=Stored(WHOLE))

These fields determine the flags of the commands (`add_option`), the checks of single values (`check_options`), the reference of
the commands, and the keys of a training's YAML file. For conversions, they also determine the options in the manifest
(`stored_options`), the options that an append inherits (beam_jobs/command/inherited_options.py), and the flags that keywords become
(beam_jobs/calls/command_words.py). Rules between several options are in the `__post_init__` of their dataclass.
"""

from __future__ import annotations

import argparse
import dataclasses
import enum
import math
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from tpudata.checked_json import Schema
from tpudata.checks import is_integer
from tpudata.console.flags import FlagParser, flag_type, positive_int
from tpudata.console.nearest import suggestion
from tpudata.error_text.values import format_value
from tpudata.errors import UsageError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_T = TypeVar("_T")
_METADATA = "option"
# Characters of the longest metavar; longer choices are listed in the help text, which argparse wraps.
_MAX_METAVAR_CHARACTERS = 40


@dataclasses.dataclass(frozen=True)
class Bounds:
    """Whole numbers that an option may be.

    Attributes:
        low: smallest number; None for any, only without `high`.
        high: largest number; None for any.
        expected: description of these numbers for messages; empty for `LOW to HIGH`, or `LOW or more` without `high`.
    """

    low: int | None = None
    high: int | None = None
    expected: str = ""

    def check(self, flag: str, value: Any) -> None:
        """Raise UsageError if a value is not an integer, or out of range."""
        if not is_integer(value):
            raise UsageError(f"{flag}: not a whole number (got {value!r})")
        if not is_integer(value, self.low, self.high):
            expected = self.expected or (
                f"{self.low:,} or more" if self.high is None else f"{self.low:,} to {self.high:,}"
            )
            raise UsageError(f"{flag}: out of range (got {value:,}, expected {expected})")


@dataclasses.dataclass(frozen=True)
class PositiveNumber:
    """Numbers above 0 that an option may be."""

    def check(self, flag: str, value: Any) -> None:
        """Raise UsageError if a value is not a finite number above 0."""
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not (value > 0 and math.isfinite(value)):
            raise UsageError(f"{flag}: out of range (got {value!r}, expected a number above 0)")


@dataclasses.dataclass(frozen=True)
class Value:
    """The values of an option on a command line.

    Attributes:
        metavar: placeholder for the value in the help; empty to show the choices.
        parse: function from a word of the command line to the value; its ValueError or UsageError is shown.
        bounds: the numbers that are allowed; None for any value.
    """

    metavar: str = ""
    parse: Callable[[str], Any] = str
    bounds: Bounds | PositiveNumber | None = None


COUNT = Value("N", positive_int, Bounds(1, expected="a whole number of 1 or more"))
_TEXT = Value()
REQUIRED: Any = dataclasses.MISSING


def _return_unchanged(value: Any) -> Any:
    return value


@dataclasses.dataclass(frozen=True)
class Stored:
    """Entry in the manifest of an option that determines the content of shards.

    Attributes:
        schema: check of an entry that an append inherits unless the flag is passed; None if it is not inherited.
        write: function from the option's value to JSON; not called for None.
        read: function from JSON to the option's value, or to the list that `collect` takes; not called for null.
        is_optional: whether an empty value is omitted, as in datasets of versions without the option.
        name: name of the entry; empty for the option's name.
        is_path: whether the value is a path, whose content decides, so that an append may get the content from another path.
    """

    schema: Schema | None = None
    write: Callable[[Any], Any] = _return_unchanged
    read: Callable[[Any], Any] = _return_unchanged
    is_optional: bool = False
    name: str = ""
    is_path: bool = False


@dataclasses.dataclass(frozen=True)
class Option:
    """An option of a command, as `option` adds it to a field and `list_options` returns it.

    Attributes:
        group: group of the flag in the help.
        help: a phrase, with the default in parentheses unless that is false or nothing.
        default: default of the field; REQUIRED without a default.
        name: name of the field, and of the keyword of the functions.
        flag: the flag, such as `--shard-size`.
        value: the values that the flag takes.
        choices: values of the option by the words that stand for them; empty if the flag also takes other words.
        inverts: whether the flag is a switch that sets the option to False.
        collect: function from all values of a flag that may be passed several times to the option's value; None for other flags.
        separator: characters between a key and its value in the flag, for an option whose keyword is a mapping.
        stored: entry in the manifest; None if the option does not affect the content of shards.
        modes: modes of the command that use the option; empty for all.
        needs: name of the option that this one has no effect without; empty if there is none.
        aliases: other names of the flag.
    """

    group: enum.Enum
    help: str
    default: Any
    name: str
    flag: str
    value: Value
    choices: Mapping[str, Any]
    inverts: bool
    collect: Callable[[list[Any]], Any] | None
    separator: str
    stored: Stored | None
    modes: Sequence[str] = ()
    needs: str = ""
    aliases: Sequence[str] = ()

    @property
    def is_required(self) -> bool:
        """Whether the flag must be passed."""
        return self.default is REQUIRED

    @property
    def is_switch(self) -> bool:
        """Whether the flag is `--flag`, `--no-flag` or `--flag=true|false`."""
        return isinstance(self.default, bool) and not self.choices

    @property
    def translates_booleans(self) -> bool:
        """Whether the flag's value is not the option's True or False itself, but a word of `choices` or the opposite boolean."""
        return isinstance(self.default, bool) and (self.inverts or not self.is_switch)

    def check(self, value: Any) -> None:
        """Raise UsageError if a value is invalid whatever the other options are."""
        if value is None and self.default is None:
            return
        if self.choices and value not in self.choices.values():
            expected = (" or " if len(self.choices) == 2 else ", ").join(self.choices)
            hint = suggestion(str(value), self.choices)
            raise UsageError(f"{self.flag}: unknown value (got {value!r}, expected {expected}){hint}")
        if self.value.bounds is not None:
            self.value.bounds.check(self.flag, value)

    def from_flag(self, parsed: Any) -> Any:
        """Return the option's value for the parsed value of its flag."""
        if self.collect is not None:
            return self.collect(parsed)
        if self.inverts:
            return not parsed
        return self.choices.get(parsed, parsed) if self.choices else parsed

    def to_flag(self, value: Any) -> Any:
        """Return the parsed value of the flag that gives the option this value: undo `inverts` and `choices`, but not `collect`."""
        if self.inverts:
            return not value
        return next((word for word, choice in self.choices.items() if choice == value), value)

    def format_flag_value(self, value: Any) -> str:
        """Return the word to pass with the flag so that the option has this value; UsageError for an int too large to convert."""
        parsed = self.to_flag(value)
        if isinstance(parsed, bool):
            return str(parsed).lower()
        try:
            return os.fsdecode(parsed) if isinstance(parsed, (os.PathLike, bytes)) else str(parsed)
        # Python converts no int of more than 4,300 digits to a string.
        except ValueError:
            raise UsageError(f"{self.name}: too large (got {format_value(parsed)}). Pass another value.") from None


def option(
    default: _T,
    group: enum.Enum,
    help: str,
    value: Value = _TEXT,
    *,
    flag: str = "",
    choices: Mapping[str, Any] | Sequence[str] = (),
    inverts: bool = False,
    collect: Callable[[list[Any]], Any] | None = None,
    separator: str = "=",
    stored: Stored | None = None,
    modes: Sequence[str] = (),
    needs: str = "",
    aliases: Sequence[str] = (),
) -> _T:
    """Return a field of a dataclass that is an option; the arguments are the attributes of Option.

    An empty `flag` stands for the flag with the field's name. `choices` may be words that stand for themselves. A default that is a
    dict is copied for each object.
    """
    definition = Option(
        group,
        help,
        default,
        # `list_options` fills in the name of the field.
        name="",
        flag=flag,
        value=value,
        choices=choices if isinstance(choices, Mapping) else {word: word for word in choices},
        inverts=inverts,
        collect=collect,
        separator=separator,
        stored=stored,
        modes=modes,
        needs=needs,
        aliases=aliases,
    )
    field: Any = (
        dataclasses.field(default_factory=default.copy, metadata={_METADATA: definition})
        if isinstance(default, dict)
        else dataclasses.field(default=default, metadata={_METADATA: definition})
    )
    # Declared as the default's type, like dataclasses.field, so that type checkers compare it with the annotation.
    return field  # type: ignore[no-any-return]


def list_options(options_class: type[DataclassInstance]) -> Mapping[str, Option]:
    """Return the options of a dataclass by name, in the order of its fields."""
    options: dict[str, Option] = {}
    for field in dataclasses.fields(options_class):
        if _METADATA in field.metadata:
            definition: Option = field.metadata[_METADATA]
            flag = definition.flag or f"--{field.name.replace('_', '-')}"
            options[field.name] = dataclasses.replace(definition, name=field.name, flag=flag)
    return options


def add_option(parser: FlagParser, option: Option, *, is_required: bool = False) -> None:
    """Add the flag of an option to a parser. Its value has the option's name, and is None if the flag is not passed.

    Args:
        parser: the parser.
        option: the option, as `list_options` returns it.
        is_required: whether the flag must be passed.
    """
    # argparse formats the help with %.
    help_text = option.help.replace("%", "%%")
    if option.is_switch:
        parser.add_switch(option.flag, default=None, help=help_text, dest=option.name)
        return
    metavar = option.value.metavar or "{" + ",".join(option.choices) + "}"
    # Many choices are listed in the help text, which argparse wraps.
    if len(metavar) > _MAX_METAVAR_CHARACTERS:
        help_text, metavar = f"{help_text}: {', '.join(option.choices)}", option.flag.removeprefix("--").upper()
    parse = option.value.parse
    parser.add_argument(
        option.flag,
        *option.aliases,
        dest=option.name,
        action=_StoreOnce if is_required else "store" if option.collect is None else "append",
        # argparse has messages for Python's types.
        type=parse if isinstance(parse, type) else flag_type(option.name, parse),
        metavar=metavar,
        required=is_required,
        help=help_text,
    )


class _StoreOnce(argparse.Action):
    """Stores the value of a required flag, such as an input; another value would silently replace it."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        del parser, option_string
        first = getattr(namespace, self.dest)
        if first not in (None, values):
            raise argparse.ArgumentError(self, f"passed twice (got {first!r} and {values!r}). Pass it once")
        setattr(namespace, self.dest, values)


def passed_options(options_class: type, flags: argparse.Namespace) -> dict[str, Any]:
    """Return the values of a dataclass's options that were passed, by their names.

    Args:
        options_class: the dataclass.
        flags: result of a parser with flags of `add_option`; it may lack some of them.
    """
    return {
        name: option.from_flag(getattr(flags, name))
        for name, option in list_options(options_class).items()
        if getattr(flags, name, None) is not None
    }


def check_options(options: DataclassInstance) -> None:
    """Raise UsageError if an option of a dataclass has a value that is invalid whatever the other options are."""
    for name, option in list_options(type(options)).items():
        option.check(getattr(options, name))


def check_uses(options: DataclassInstance, mode: str = "") -> None:
    """Raise UsageError if an option is set but has no effect in this mode, or needs another option that is not set.

    Args:
        options: an object of a dataclass of options.
        mode: mode of the command; empty for commands without modes.
    """
    options_by_name = list_options(type(options))
    for name, option in options_by_name.items():
        # The option is not set. Numbers of 0 also count as not set, since 0 == False.
        if getattr(options, name) in (None, False, ""):
            continue
        if option.modes and mode not in option.modes:
            raise UsageError(
                f"{option.flag} requires --mode {' or '.join(option.modes)} (got {mode}). Omit one of them."
            )
        if option.needs and not getattr(options, option.needs):
            raise UsageError(
                f"{option.flag} requires {options_by_name[option.needs].flag}. Pass it, too, or omit {option.flag}."
            )


def drop_empty_options(options: DataclassInstance, values_by_name: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of options without those of empty options that are optional in the manifest.

    The digest of the values then equals the digest that versions without these options compute for the same shards.

    Args:
        options: an object of a dataclass of options, whose values decide which options are empty.
        values_by_name: values of its fields by name, as the digest takes them.
    """
    empty_names = {
        name
        for name, option in list_options(type(options)).items()
        if option.stored and option.stored.is_optional and not getattr(options, name)
    }
    return {name: value for name, value in values_by_name.items() if name not in empty_names}


def list_path_entries(options: DataclassInstance) -> frozenset[str]:
    """Return the names of the manifest's entries that are paths, for the options of an object."""
    stored_by_name = {name: option.stored for name, option in list_options(type(options)).items()}
    return frozenset(stored.name or name for name, stored in stored_by_name.items() if stored and stored.is_path)


def stored_options(options: DataclassInstance) -> dict[str, Any]:
    """Return the manifest's entries for the options of an object, by the entries' names, without empty optional entries."""
    entries: dict[str, Any] = {}
    for name, option in list_options(type(options)).items():
        value = getattr(options, name)
        if option.stored is not None and (value or not option.stored.is_optional):
            entries[option.stored.name or name] = None if value is None else option.stored.write(value)
    return entries

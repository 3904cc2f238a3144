"""Parsing the flags of options, and converting them to the options' dataclasses."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeVar

from beam_jobs.options.groups import FlagGroup
from tpudata.console.flags import FlagParser
from tpudata.console.option import add_option, list_options, passed_options

_T = TypeVar("_T")
_BEAM = "Any flag of Apache Beam is taken too, such as --runner=DataflowRunner --project=... (default: a local runner)."


class OptionParser(FlagParser):
    """A parser whose flags are the options of dataclasses, in groups.

    A parsed flag has the name of its option. It is None if it was not passed, so that an append or `--for` can set it before
    `read_options` takes the default.

    Args:
        prog: the command as the user types it.
        description: one line on what it does.
        closing: a paragraph on the forms of SRC, which `--help` prints below the flags.
        option_classes: dataclasses whose options become flags.
        without: names of options that have no flag here.
        helps: help texts that replace those of the fields, by name of the option.
        topics: pages of `tpudata help` about the command.
    """

    def __init__(
        self,
        prog: str,
        description: str,
        closing: str,
        option_classes: Sequence[type],
        without: Collection[str] = (),
        helps: Mapping[str, str] = MappingProxyType({}),
        topics: Sequence[str] = (),
    ) -> None:
        super().__init__(prog, description, (closing, _BEAM), topics)
        options = [
            dataclasses.replace(option, help=helps.get(option.name, option.help))
            for option_class in option_classes
            for option in list_options(option_class).values()
            if option.name not in without
        ]
        self.options = {option.name: option for option in options}
        for group in FlagGroup:
            members = [option for option in options if option.group is group]
            if members:
                with self.group(group.value):
                    # Required flags come first.
                    for option in sorted(members, key=lambda option: not option.is_required):
                        add_option(self, option, is_required=option.is_required)


def read_options(option_class: type[_T], flags: argparse.Namespace, **defaults: Any) -> _T:
    """Return an instance of a dataclass of options, made from parsed flags.

    Args:
        option_class: dataclass of the returned options.
        flags: flags from an OptionParser.
        **defaults: values of fields without a flag, and of options that were not passed, in place of the fields' defaults.

    Raises:
        UsageError: a value is invalid, or options do not fit each other.
    """
    return option_class(**{**defaults, **passed_options(option_class, flags)})

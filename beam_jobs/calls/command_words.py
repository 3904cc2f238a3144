"""Keywords of a function as the words of a command line, and messages of the command in terms of the function.

A conversion has one set of options, with one check of each: those of its command's parser.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from tpudata.console.option import Option
from tpudata.errors import TpudataError, UsageError

_FLAG = re.compile(r"(?<![\w-])--([a-z][a-z0-9-]*)(?:=([^\s,;:)]*[^\s,;:).?!]))?")
_OMIT = re.compile(r"\b([Oo]mit the) flag\b")


def command_words(keywords: Mapping[str, Any], options: Mapping[str, Option]) -> list[str]:
    """Return keywords as the words of a command line.

    Args:
        keywords: values by name; None stands for an omitted one.
        options: options of the command by name.

    Raises:
        UsageError: a value that no flag can have.
    """
    return [
        f"{options[name].flag}={text}"
        for name, value in keywords.items()
        if value is not None
        for text in _list_texts(options[name], value)
    ]


@contextlib.contextmanager
def translate_errors(name: str, keywords: Collection[str], options: Mapping[str, Option]) -> Iterator[None]:
    """Have errors name keywords instead of flags; the arguments are those of `translate_flags`."""
    try:
        yield
    except TpudataError as error:
        error.args = (translate_flags(str(error), name, keywords, options),)
        raise


def translate_flags(text: str, name: str, keywords: Iterable[str], options: Mapping[str, Option]) -> str:
    """Return a message with keywords in place of flags.

    Args:
        text: the message of a command.
        name: name of the function.
        keywords: those of the function.
        options: options of the command by name.
    """
    names = {options[word].flag if word in options else f"--{word.replace('_', '-')}": word for word in keywords}
    switches = {option.flag for option in options.values() if option.is_switch}

    def keyword_text(match: re.Match[str]) -> str:
        """Return the keyword for a flag in a text, with its value; the unchanged text of an unknown flag."""
        flag, value = f"--{match[1]}", match[2]
        if flag not in names and f"--{match[1].removeprefix('no-')}" in switches:
            flag, value = f"--{match[1].removeprefix('no-')}", "false"
        if flag not in names:
            return match[0]
        keyword = names[flag]
        option = options.get(keyword)
        if option is not None and option.translates_booleans:
            return f"{keyword}={(value or 'true') == option.format_value(True)}"
        if flag in switches and not text[: match.start()].endswith("argument "):
            return f"{keyword}={value in (None, 'true')}"
        return keyword if value is None else f"{keyword}={value}"

    text = text.replace(f" See: {name} --help", f" See: help({name})")
    return _OMIT.sub(r"\1 argument", _FLAG.sub(keyword_text, text))


def _list_texts(option: Option, value: Any) -> list[str]:
    """Return the values of the flag of a keyword, one for each time that it is passed."""
    if option.translates_booleans and not isinstance(value, bool):
        raise UsageError(f"{option.name}: neither True nor False (got {value!r})")
    if isinstance(value, Mapping):
        items = [
            f"{_check_key(option, key)}{option.separator}{option.format_value(element)}"
            for key, element in value.items()
        ]
    elif isinstance(value, (list, tuple, set, frozenset)):
        items = [option.format_value(element) for element in value]
    else:
        return [option.format_value(value)]
    if option.collect is not None:
        return items
    for element in items:
        if "," in element:
            raise UsageError(
                f"{option.name}: an item with a comma, which stands between items (got {element!r}). Rename it."
            )
    return [",".join(items)]


def _check_key(option: Option, key: Any) -> str:
    if not isinstance(key, str) or "=" in key:
        raise UsageError(f"{option.name}: invalid name (got {key!r}, expected text without =). Rename it.")
    return key

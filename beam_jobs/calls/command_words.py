"""Keywords of a function as the words of a command line, and messages of the command in terms of the function.

A function thus checks its keywords with the rules of its command's flags.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from tpudata.console.option import Option
from tpudata.errors import TpudataError, UsageError

# A flag in a message, and its value if it has one, without the punctuation that ends a clause. A blank may stand between them, so
# the next word may also be the value.
_FLAG = re.compile(
    r"(?<![\w-])--(?P<name>[a-z][a-z0-9-]*)(?:=(?P<value>[^\s,;:)]*[^\s,;:).?!])|(?P<word> \w(?:[\w-]*\w)?))?"
)
_OMIT = re.compile(r"\b([Oo]mit the) flag\b")


def make_command_words(keywords: Mapping[str, Any], options: Mapping[str, Option]) -> list[str]:
    """Return keywords as the words of a command line.

    Args:
        keywords: values by name; None if the keyword was omitted.
        options: options of the command by name.

    Raises:
        UsageError: no flag can have a keyword's value.
    """
    return [
        f"{options[name].flag}={text}"
        for name, value in keywords.items()
        if value is not None
        for text in _list_texts(options[name], value)
    ]


@contextlib.contextmanager
def translate_errors(name: str, keywords: Collection[str], options: Mapping[str, Option]) -> Iterator[None]:
    """Replace flags by keywords in the messages of errors that leave this context.

    Args:
        name: full name of the function.
        keywords: names of the function's keywords.
        options: options of the command by name.
    """
    try:
        yield
    except TpudataError as error:
        error.args = (translate_flags(str(error), name, keywords, options),)
        raise


def translate_flags(text: str, name: str, keywords: Iterable[str], options: Mapping[str, Option]) -> str:
    """Return a message with keywords in place of flags.

    Args:
        text: the message of a command.
        name: full name of the function.
        keywords: names of the function's keywords.
        options: options of the command by name.
    """
    keywords_by_flag = {
        options[keyword].flag if keyword in options else f"--{keyword.replace('_', '-')}": keyword
        for keyword in keywords
    }
    switches = {option.flag for option in options.values() if option.is_switch}

    def translate_flag(match: re.Match[str]) -> str:
        """Return the keyword for a flag in the message, with its value; an unknown flag unchanged."""
        flag, value, next_word = f"--{match['name']}", match["value"], match["word"] or ""
        switch = f"--{match['name'].removeprefix('no-')}"
        # --no-x turns the switch --x off.
        if flag not in keywords_by_flag and switch in switches:
            flag, value = switch, "false"
        if flag not in keywords_by_flag:
            return match[0]
        keyword = keywords_by_flag[flag]
        option = options.get(keyword)
        if option is not None and next_word.lstrip() in option.choices:
            value, next_word = next_word.lstrip(), ""
        # The flag may invert the option or have words in place of True and False; without a value it stands for `true`.
        if option is not None and option.translates_booleans:
            return f"{keyword}={(value or 'true') == option.format_flag_value(True)}{next_word}"
        # "argument --x: ..." names the switch, and does not say that it was passed.
        if flag in switches and not text[: match.start()].endswith("argument "):
            return f"{keyword}={value in (None, 'true')}{next_word}"
        return f"{keyword}{next_word}" if value is None else f"{keyword}={value}{next_word}"

    # Python's users read help(NAME), and omit an argument instead of a flag.
    text = text.replace(f" See: {name} --help", f" See: help({name})")
    return _OMIT.sub(r"\1 argument", _FLAG.sub(translate_flag, text))


def _list_texts(option: Option, value: Any) -> list[str]:
    """Return the values of a keyword's flag, a string for each time that it is passed; UsageError if a flag cannot take them."""
    if option.translates_booleans and not isinstance(value, bool):
        raise UsageError(f"{option.name}: neither True nor False (got {value!r})")
    if isinstance(value, Mapping):
        texts = [
            f"{_check_key(option, key)}{option.separator}{option.format_flag_value(element)}"
            for key, element in value.items()
        ]
    elif isinstance(value, (list, tuple, set, frozenset)):
        texts = [option.format_flag_value(element) for element in value]
    else:
        return [option.format_flag_value(value)]
    if option.collect is not None:
        # A flag that collects is passed once for each item; other flags take all items in one value.
        return texts
    for text in texts:
        if "," in text:
            raise UsageError(
                f"{option.name}: an item with a comma, which stands between items (got {text!r}). Rename it."
            )
    return [",".join(texts)]


def _check_key(option: Option, key: Any) -> str:
    """Return a key of a keyword's mapping unchanged; UsageError if it cannot be written as NAME in the flag's NAME=VALUE."""
    if not isinstance(key, str) or "=" in key:
        raise UsageError(f"{option.name}: invalid name (got {key!r}, expected text without =). Rename it.")
    return key

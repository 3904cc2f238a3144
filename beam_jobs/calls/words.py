"""Keywords of a function as the words of a command line, and messages of the command in terms of the function.

A conversion has one set of options, with one check of each: those of its command's parser.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from tpudata.errors import TpudataError, UsageError

# Keywords whose flag has another name.
_FLAGS = {
    "shard_bytes": "shard-size",
    "labels_file": "labels",
    "fields": "field",
    "source_args": "source-arg",
    "take": "take-splits",
    "label_maps": "label-map",
    "reader": "for",
}
# Keywords whose flag has other values, too: the flag, and its values for True and False.
_BOOLEANS = {
    "replace_invalid": ("invalid-utf8", ("replace", "fail")),
    "end_documents": ("no-eos", ("false", "true")),
}
# Flags that are passed once for each item. Other flags take all items, with commas between them.
_REPEATED = ("fields", "source_args", "split_keys", "raw", "label_maps")
# In an item of a mapping.
_SEPARATORS = {"fields": ":"}
_FLAG = re.compile(r"(?<![\w-])--([a-z][a-z0-9-]*)(?:=([^\s,;:)]*[^\s,;:).?!]))?")
_OMIT = re.compile(r"\b([Oo]mit the) flag\b")


def flag_of(keyword: str) -> str:
    """Return the flag of a keyword, such as `--shard-size` for `shard_bytes`."""
    name = _BOOLEANS[keyword][0] if keyword in _BOOLEANS else _FLAGS.get(keyword, keyword)
    return f"--{name.replace('_', '-')}"


def command_words(keywords: Mapping[str, Any]) -> list[str]:
    """Return keywords as the words of a command line.

    Args:
        keywords: values by name; None stands for an omitted one.

    Raises:
        UsageError: a value that no flag can have.
    """
    return [
        f"{flag_of(name)}={text}"
        for name, value in keywords.items()
        if value is not None
        for text in _texts(name, value)
    ]


@contextlib.contextmanager
def translate_errors(name: str, keywords: Collection[str], switches: Collection[str]) -> Iterator[None]:
    """Have errors name keywords instead of flags.

    Args:
        name: name of the function.
        keywords: those of the function.
        switches: the flags that are booleans.
    """
    try:
        yield
    except TpudataError as error:
        error.args = (translate_flags(str(error), name, keywords, switches),)
        raise


def translate_flags(text: str, name: str, keywords: Iterable[str], switches: Collection[str]) -> str:
    """Return a message with keywords in place of flags.

    Args:
        text: the message of a command.
        name: name of the function.
        keywords: those of the function.
        switches: the flags that are booleans.
    """
    names = {flag_of(keyword): keyword for keyword in keywords}

    def keyword_text(found: re.Match[str]) -> str:
        flag, value = f"--{found[1]}", found[2]
        if flag not in names and f"--{found[1].removeprefix('no-')}" in switches:
            flag, value = f"--{found[1].removeprefix('no-')}", "false"
        if flag not in names:
            return found[0]
        keyword = names[flag]
        if keyword in _BOOLEANS:
            true = _BOOLEANS[keyword][1][0]
            return f"{keyword}={(value or 'true') == true}"
        if flag in switches and not text[: found.start()].endswith("argument "):
            return f"{keyword}={value in (None, 'true')}"
        return keyword if value is None else f"{keyword}={value}"

    text = text.replace(f" See: {name} --help", f" See: help({name})")
    return _OMIT.sub(r"\1 argument", _FLAG.sub(keyword_text, text))


def _texts(name: str, value: Any) -> list[str]:
    """Return the values of the flag of a keyword, one for each time that it is passed."""
    if name in _BOOLEANS:
        if not isinstance(value, bool):
            raise UsageError(f"{name}: neither True nor False (got {value!r})")
        true, false = _BOOLEANS[name][1]
        return [true if value else false]
    if isinstance(value, Mapping):
        separator = _SEPARATORS.get(name, "=")
        items = [f"{_key(name, key)}{separator}{_text(item)}" for key, item in value.items()]
    elif isinstance(value, (list, tuple, set, frozenset)):
        items = [_text(item) for item in value]
    else:
        return [_text(value)]
    if name in _REPEATED:
        return items
    for item in items:
        if "," in item:
            raise UsageError(f"{name}: an item with a comma, which stands between items (got {item!r}). Rename it.")
    return [",".join(items)]


def _key(name: str, key: Any) -> str:
    if not isinstance(key, str) or "=" in key:
        raise UsageError(f"{name}: invalid name (got {key!r}, expected text without =). Rename it.")
    return key


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return os.fspath(value) if isinstance(value, os.PathLike) else str(value)

"""Finding a chat template: in a file, or next to the tokenizer's file, where Hugging Face's models have it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from beam_jobs.chats.template import ChatTemplate
from tpudata.errors import SourceError, UsageError
from tpudata.json_values import parse_input_json
from tpudata.storage import storage_for
from tpudata.tokenizers.open_tokenizer import TokenizerSpec

_CONFIG_NAME, _TEMPLATE_NAME = "tokenizer_config.json", "chat_template.jinja"
_TOKEN_NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
# Far more than any template or config has. Without this limit, all of a wrong file would be read into memory.
_MAX_BYTES = 1 << 24
# Name of the template that is used if a config has several.
_DEFAULT = "default"


def find_chat_template(path: str | None, tokenizer: TokenizerSpec) -> ChatTemplate:
    """Return the template of a file or, if no path is passed, of the tokenizer.

    Args:
        path: path of a Jinja source or of a tokenizer_config.json; None searches next to the tokenizer's file.
        tokenizer: the tokenizer; a tokenizer_config.json next to its file names the special tokens, unless `path` is such a file.

    Raises:
        SourceError: a file is missing, too large or damaged.
        UsageError: there is no template, or it is not Jinja.
        MissingExtraError: the package jinja2 is not installed.
    """
    config = _read_config(_join_sibling(tokenizer.path, _CONFIG_NAME))
    if path is not None:
        text = _read_text(path)
        if text is None:
            raise SourceError(f"--chat-template {path}: no such file. Check the path.")
        # A Jinja source may begin with {% or {{, but not like a JSON object.
        if text.lstrip().startswith('{"') or path.endswith(".json"):
            config = _parse_config(path, text)
            source = _find_template_source(config)
        else:
            source = text
    else:
        source = _read_text(_join_sibling(tokenizer.path, _TEMPLATE_NAME)) or _find_template_source(config)
    if not source:
        searched_place = path or f"next to --tokenizer {tokenizer.text}"
        raise UsageError(f"--chat: no chat template (got nothing in {searched_place}). Pass --chat-template FILE")
    return ChatTemplate(source, tuple(sorted(_list_special_tokens(config))))


def _join_sibling(path: str, name: str) -> str:
    """Return the path of a file next to another; an empty string for an empty path, which a built-in tokenizer has."""
    return path[: path.rfind("/") + 1] + name if path else ""


def _read_text(path: str) -> str | None:
    """Return the text of a file; None if `path` is empty or not a file, SourceError if the file is too large or not UTF-8."""
    if not path:
        return None
    storage = storage_for(path)
    entry = storage.stat(path)
    if entry is None or entry.is_folder:
        return None
    if entry.size > _MAX_BYTES:
        raise SourceError(f"{path}: too large (got {entry.size:,} bytes, expected at most {_MAX_BYTES:,}). Check it.")
    try:
        return storage.read(path).decode()
    except UnicodeDecodeError:
        raise SourceError(f"{path} is not UTF-8. Copy it again from its source.") from None


def _read_config(path: str) -> dict[str, Any]:
    """Return the JSON object of a tokenizer_config.json; empty if `path` is empty or not a file."""
    text = _read_text(path)
    return {} if text is None else _parse_config(path, text)


def _parse_config(path: str, text: str) -> dict[str, Any]:
    """Return the JSON object of a tokenizer_config.json; SourceError with `path` if the text is not a JSON object."""
    try:
        config = parse_input_json(text)
    except ValueError as error:
        raise SourceError(f"{path} is not JSON: {error}. Copy it again from its source.") from None
    if not isinstance(config, dict):
        raise SourceError(f"{path} is not a JSON object (got {type(config).__name__}). Copy it again from its source.")
    return config


def _find_template_source(config: dict[str, Any]) -> str:
    """Return the template in a tokenizer_config.json, the default one of several; an empty string if there is none."""
    template = config.get("chat_template")
    if isinstance(template, list):
        templates_by_name = {entry.get("name"): entry.get("template") for entry in template if isinstance(entry, dict)}
        template = templates_by_name.get(_DEFAULT)
    return template if isinstance(template, str) else ""


def _list_special_tokens(config: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield (name, text) of each special token in a tokenizer_config.json."""
    for name in _TOKEN_NAMES:
        value = config.get(name)
        # Some files hold a token as an object with its text and its rules of matching.
        text = value.get("content") if isinstance(value, dict) else value
        if isinstance(text, str):
            yield name, text

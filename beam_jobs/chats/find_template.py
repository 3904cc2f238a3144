"""Finding a chat template: in a file, or next to a tokenizer's file as Hugging Face's models have it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from beam_jobs.chats.template import ChatTemplate
from tpudata.errors import SourceError, UsageError
from tpudata.json_values import parse_input_json
from tpudata.storage import storage_for
from tpudata.tokenizers.open_tokenizer import TokenizerSpec

_CONFIG, _TEMPLATE = "tokenizer_config.json", "chat_template.jinja"
_NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_MOST_BYTES = 1 << 24
_DEFAULT = "default"


def find_chat_template(path: str | None, tokenizer: TokenizerSpec) -> ChatTemplate:
    """Return the template of a file, or else of the tokenizer.

    Args:
        path: path of a Jinja source or of a tokenizer_config.json; None searches next to the tokenizer's file.
        tokenizer: next to whose file the special tokens are.

    Raises:
        SourceError: a file is missing or damaged.
        UsageError: there is no template.
        MissingExtraError: the package jinja2 is not installed.
    """
    config = _read_config(_join_sibling(tokenizer.path, _CONFIG))
    if path is not None:
        text = _read(path)
        if text is None:
            raise SourceError(f"--chat-template {path}: no such file. Check the path.")
        config_passed = _parse_config(path, text) if text.lstrip().startswith('{"') or path.endswith(".json") else None
        source, config = (text, config) if config_passed is None else (_find_source(config_passed), config_passed)
    else:
        source = _read(_join_sibling(tokenizer.path, _TEMPLATE)) or _find_source(config)
    if not source:
        searched_place = path or f"next to --tokenizer {tokenizer.text}"
        raise UsageError(f"--chat: no chat template (got nothing in {searched_place}). Pass --chat-template FILE")
    return ChatTemplate(source, tuple(sorted(_list_special_tokens(config))))


def _join_sibling(path: str, name: str) -> str:
    return "" if not path else f"{path.rpartition('/')[0] or ('/' if path.startswith('/') else '.')}/{name}"


def _read(path: str) -> str | None:
    """Return the text of a file; None if it does not exist, SourceError if it is too large or not UTF-8."""
    if not path:
        return None
    storage = storage_for(path)
    entry = storage.stat(path)
    if entry is None or entry.is_folder:
        return None
    if entry.size > _MOST_BYTES:
        raise SourceError(f"{path}: too large (got {entry.size:,} bytes, expected at most {_MOST_BYTES:,}). Check it.")
    try:
        return storage.read(path).decode()
    except UnicodeDecodeError:
        raise SourceError(f"{path} is not UTF-8. Copy it again from its source.") from None


def _read_config(path: str) -> dict[str, Any]:
    text = _read(path)
    return {} if text is None else _parse_config(path, text)


def _parse_config(path: str, text: str) -> dict[str, Any]:
    try:
        config = parse_input_json(text)
    except ValueError as error:
        raise SourceError(f"{path} is not JSON: {error}. Copy it again from its source.") from None
    if not isinstance(config, dict):
        raise SourceError(f"{path} is not a JSON object (got {type(config).__name__}). Copy it again from its source.")
    return config


def _find_source(config: dict[str, Any]) -> str:
    """Return the template of a tokenizer_config.json, of several the default one; empty without any."""
    template = config.get("chat_template")
    if isinstance(template, list):
        templates_by_name = {entry.get("name"): entry.get("template") for entry in template if isinstance(entry, dict)}
        template = templates_by_name.get(_DEFAULT)
    return template if isinstance(template, str) else ""


def _list_special_tokens(config: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for name in _NAMES:
        value = config.get(name)
        text = value.get("content") if isinstance(value, dict) else value
        if isinstance(text, str):
            yield name, text

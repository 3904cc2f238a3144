"""Chat templates: Jinja sources that turn the messages of a chat into the text that a model was trained on.

They are rendered in Jinja's sandbox, as Hugging Face's `apply_chat_template` does. The assistant's text is the content of
`{% generation %}` blocks; if a template has none, it is what each message of the assistant adds to the text of the earlier ones.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import date
from typing import Any, NamedTuple, NoReturn

from tpudata.error_text.lines import one_line
from tpudata.errors import MissingExtraError, UsageError
from tpudata.format.tokenizer_file import CHAT_TEMPLATE
from tpudata.tokenizers.tokenizer import sha256

# Marks at the start and the end of the assistant's text: code points that are not characters, and that messages must not have.
_BEGIN, _END = "\ufdd0", "\ufdd1"
_MARK = re.compile(f"[{_BEGIN}{_END}]")
_GENERATION = re.compile(r"\{%[-+]?\s*generation\s*[-+]?%\}")
# The date that templates get, so that a chat has the same text every day: the default date of Llama's templates.
_TODAY = date(2024, 7, 26)
ASSISTANT = "assistant"


class ChatText(NamedTuple):
    """Text of a chat.

    Attributes:
        text: the rendered text, without marks.
        spans: (begin, end) in characters of each piece of the text that the assistant says, in order.
    """

    text: str
    spans: list[tuple[int, int]]


@dataclasses.dataclass(frozen=True)
class ChatTemplate:
    """A template, and the special tokens that it may use.

    Attributes:
        source: Jinja source of the template.
        tokens: (name, text) of special tokens, such as ("eos_token", "</s>"), sorted.

    Raises:
        MissingExtraError: the package jinja2 is not installed.
        UsageError: the source is not a template.
    """

    source: str
    tokens: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        try:
            _compile(self.source)
        except _list_template_errors() as error:
            raise UsageError(f"--chat-template: not a template: {one_line(error)}. Fix it, or pass another") from None

    @functools.cached_property
    def file_bytes(self) -> bytes:
        """Content of the file that is written next to the data: a tokenizer_config.json of Hugging Face."""
        config = {"chat_template": self.source, **dict(self.tokens)}
        return (json.dumps(config, indent=2, sort_keys=True, ensure_ascii=False) + "\n").encode()

    def to_json(self) -> dict[str, str]:
        """Return the name of the file and its hash, for the manifest."""
        return {"file": CHAT_TEMPLATE, "sha256": sha256(self.file_bytes)}

    def render(self, messages: Sequence[Mapping[str, Any]]) -> ChatText:
        """Return the text of a chat with the assistant's spans.

        Raises:
            ValueError: the template raises or shows no words of the assistant, or these cannot be found in the text.
        """
        text = self._render(messages)
        has_generation_blocks = _GENERATION.search(self.source) is not None
        chat = _unmark(text) if has_generation_blocks else ChatText(text, list(self._find_spans(messages, text)))
        if all(begin == end for begin, end in chat.spans):
            raise ValueError("the template shows nothing that the assistant says")
        return chat

    def render_text(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """Return the text of a chat, without the assistant's spans; ValueError if the template raises."""
        return _unmark(self._render(messages)).text

    def _find_spans(self, messages: Sequence[Mapping[str, Any]], text: str) -> Iterator[tuple[int, int]]:
        """Yield (begin, end) of each message of the assistant in a text: what it adds to the text of the messages before it.

        Raises:
            ValueError: the template changes earlier messages when a later one follows.
        """
        for index, message in enumerate(messages):
            if message["role"] != ASSISTANT:
                continue
            # Some templates fail without any message, and nothing is before the first one.
            text_before = self._render(messages[:index], add_generation_prompt=True) if index else ""
            text_through = self._render(messages[: index + 1])
            if not text_through.startswith(text_before):
                # Some templates begin an answer differently from their generation prompt.
                text_before = self._render(messages[:index])
            if not (text_through.startswith(text_before) and text.startswith(text_through)):
                raise ValueError(
                    f"the template changes earlier messages at message {index}, so the assistant's words are not found; put"
                    " {% generation %} blocks into it"
                )
            yield len(text_before), len(text_through)

    def _render(self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool = False) -> str:
        """Return the text of messages; ValueError if the template raises."""
        try:
            text: str = _compile(self.source).render(
                messages=messages,
                tools=None,
                documents=None,
                add_generation_prompt=add_generation_prompt,
                **dict(self.tokens),
            )
        except _list_rendering_errors() as error:
            raise ValueError(f"the chat template rejects it: {one_line(error)}") from None
        return text


def has_marks(text: str) -> bool:
    """Return whether a text has one of the two characters that mark the assistant's words."""
    return _MARK.search(text) is not None


def _unmark(marked: str) -> ChatText:
    """Return a text without the marks around the assistant's words, and the spans of these words."""
    # The text between the marks.
    pieces: list[str] = []
    spans: list[tuple[int, int]] = []
    # Number of characters of `pieces`, and where the assistant's current words begin in them.
    length = begin = 0
    # End of the last mark in `marked`.
    position = 0
    for mark in _MARK.finditer(marked):
        pieces.append(marked[position : mark.start()])
        length += len(pieces[-1])
        position = mark.end()
        if mark[0] == _BEGIN:
            begin = length
        elif length > begin:
            spans.append((begin, length))
    return ChatText("".join([*pieces, marked[position:]]), spans)


def _list_template_errors() -> tuple[type[Exception], ...]:
    """Return Jinja's exceptions, which cannot be named before the package is imported."""
    jinja2 = _import_jinja()
    return (jinja2.exceptions.TemplateError,)


def _list_rendering_errors() -> tuple[type[Exception], ...]:
    """Return the exceptions by which a template may fail on a chat: Jinja's own, and those of its expressions."""
    expression_errors = (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError)
    return (*_list_template_errors(), *expression_errors)


@functools.cache
def _import_jinja() -> Any:
    """Return the package jinja2, with the submodules that are used loaded; MissingExtraError if it is not installed."""
    try:
        importlib.import_module("jinja2.sandbox")
        importlib.import_module("jinja2.ext")
        return importlib.import_module("jinja2")
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "jinja2":
            raise
        raise MissingExtraError("--chat", extra="text") from error


@functools.lru_cache(maxsize=4)
def _compile(source: str) -> Any:
    return _make_environment().from_string(source)


@functools.cache
def _make_environment() -> Any:
    """Return a sandboxed Jinja environment with the functions that templates of Hugging Face use."""
    jinja2 = _import_jinja()

    class Generation(jinja2.ext.Extension):  # type: ignore[misc, name-defined]
        """The block `{% generation %}`, which marks its text."""

        tags = frozenset({"generation"})

        def parse(self, parser: Any) -> Any:
            """Return the node of the block; Jinja calls this at the block's tag."""
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return jinja2.nodes.CallBlock(self.call_method("_mark"), [], [], body).set_lineno(line)

        def _mark(self, caller: Any) -> str:
            """Return the rendered text of the block between marks; its node calls this."""
            return f"{_BEGIN}{caller()}{_END}"

    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _TODAY.strftime
    return environment


def _to_json(
    value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    """Return JSON as the `tojson` of transformers does; jinja2's own escapes HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    raise _import_jinja().exceptions.TemplateError(message)

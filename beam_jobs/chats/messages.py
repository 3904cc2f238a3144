"""Chats in rows: lists of messages in two forms, and questions with answers in columns.

messages       [{"role": "user", "content": "..."}, ...], as chat templates take them
ShareGPT       [{"from": "human", "value": "..."}, ...]
columns        such as Alpaca's instruction, input and output: the last is the answer, the others are the question
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from beam_jobs.chats.template import ASSISTANT, has_marks
from tpudata.json_values import abbreviate_json, parse_input_json

_USER = "user"
# Role that templates know, by the name of a role in the data.
_ROLES = {
    **{role: role for role in ("system", _USER, ASSISTANT, "tool", "developer")},
    "human": _USER,
    "gpt": ASSISTANT,
}
_JSON = json.JSONEncoder(ensure_ascii=False)


def encode_chat(row: Mapping[str, Any], columns: Sequence[str]) -> str:
    """Return the messages of a row as JSON: a list of objects with `role` and `content`.

    Args:
        row: values by column.
        columns: the column of messages; or the columns of a question, followed by the column of the assistant's answer.

    Raises:
        ValueError: there are no messages, none of them is the assistant's, or one is invalid.
    """
    messages = _parse_messages(row, columns[0]) if len(columns) == 1 else _join_question_and_answer(row, columns)
    text = _JSON.encode(messages)
    if has_marks(text):
        raise ValueError("a message has U+FDD0 or U+FDD1, which are not characters")
    if all(message["role"] != ASSISTANT for message in messages):
        raise ValueError("the chat has no message of the assistant")
    return text


def _parse_messages(row: Mapping[str, Any], column: str) -> list[dict[str, Any]]:
    """Return the messages in a column of a row, with checked roles; ValueError if they are invalid."""
    messages = row.get(column)
    if isinstance(messages, str):
        # A cell of CSV has the JSON of the list.
        try:
            messages = parse_input_json(messages)
        except ValueError:
            raise ValueError(
                f"field {column!r} is not JSON of a list of messages: {abbreviate_json(messages)}"
            ) from None
    if messages is None or messages == []:
        raise ValueError(f"the chat is empty: field {column!r} has no messages")
    if not isinstance(messages, list):
        raise ValueError(f"field {column!r} is not a list of messages: {abbreviate_json(messages)}")
    return [_parse_message(index, message) for index, message in enumerate(messages)]


def _parse_message(message_index: int, message: Any) -> dict[str, Any]:
    """Return a message of either form with `role`, `content` and its other keys; ValueError if it is invalid."""
    if not isinstance(message, dict):
        raise ValueError(f"message {message_index} is not an object: {abbreviate_json(message)}")
    # A struct of Parquet has every key, with None in place of a missing one.
    message = {name: value for name, value in message.items() if value is not None}
    role_name, content_name = ("from", "value") if "from" in message and "role" not in message else ("role", "content")
    role, content = message.pop(role_name, None), message.pop(content_name, None)
    if not isinstance(role, str) or role not in _ROLES:
        raise ValueError(
            f"unknown role: message {message_index} (got {abbreviate_json(role)}, expected {', '.join(map(repr, _ROLES))})"
        )
    if not isinstance(content, str) and not (content is None and "tool_calls" in message):
        raise ValueError(f"message {message_index} has no text: {abbreviate_json(content)}")
    return {"role": _ROLES[role], "content": content or "", **message}


def _join_question_and_answer(row: Mapping[str, Any], columns: Sequence[str]) -> list[dict[str, Any]]:
    """Return the two messages of a row with a question, in one or more columns, and an answer.

    Raises:
        ValueError: the question or the answer is blank, or a cell is not a string.
    """
    # A missing or null cell counts as blank.
    texts = [row.get(column) or "" for column in columns]
    for column, text in zip(columns, texts, strict=True):
        if not isinstance(text, str):
            raise ValueError(f"field {column!r} is not a string: {abbreviate_json(text)}")
    *question_texts, answer = texts
    question = "\n\n".join(text for text in question_texts if text.strip())
    for side, text, side_columns in (("question", question, columns[:-1]), ("answer", answer, columns[-1:])):
        if not text.strip():
            raise ValueError(f"the chat has no {side}: {', '.join(side_columns)} blank")
    return [{"role": _USER, "content": question}, {"role": ASSISTANT, "content": answer}]

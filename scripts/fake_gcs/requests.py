"""Requests, as the parts of the store get them, and answers."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any, NamedTuple


@dataclasses.dataclass
class Request:
    """A request whose head was read.

    Attributes:
        method, path: as sent, the path still quoted.
        base: scheme and host by which the store was asked.
        said: the query, by name.
        headers: by name in lower case.
        body: what came with it.
        operation, bucket, name: what it is for; filled in by the route.
        spoils: whether the bytes that come with it are changed on the way.
        is_cut: whether half of them never come.
    """

    method: str
    path: str
    base: str
    said: dict[str, str]
    headers: Mapping[str, str]
    body: bytes = b""
    operation: str = "other"
    bucket: str = ""
    name: str = ""
    spoils: bool = False
    is_cut: bool = False

    def json(self) -> dict[str, Any]:
        """Return the body as a JSON object; an empty one if there is no body."""
        found: dict[str, Any] = json.loads(self.body) if self.body.strip() else {}
        return found

    def spoil(self, data: bytes) -> bytes:
        """Return the bytes that came, or others."""
        return spoiled(data) if self.spoils else data


class Answer(NamedTuple):
    """A response: status code, body and headers."""

    code: int
    body: bytes | memoryview
    headers: dict[str, str]


def json_answer(value: Any, code: int = 200) -> Answer:
    """Return a JSON object."""
    return Answer(code, json.dumps(value).encode(), {"Content-Type": "application/json; charset=UTF-8"})


def error_answer(code: int, message: str) -> Answer:
    """Return an error as the JSON API words it."""
    errors = [{"message": message, "domain": "global", "reason": "fake"}]
    return json_answer({"error": {"code": code, "message": message, "errors": errors}}, code)


def spoiled(data: bytes) -> bytes:
    """Return the same bytes, one bit apart."""
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :] if data else data

"""Requests and answers, as the functions that answer get and return them."""

from __future__ import annotations

import dataclasses
import email.parser
import email.policy
import json
from collections.abc import Mapping
from email.message import EmailMessage
from typing import Any, NamedTuple


@dataclasses.dataclass
class Request:
    """A request whose head was read.

    Attributes:
        method, path: as sent, the path without the query and still quoted.
        base: scheme and host of the request's URL.
        query: values of the query by name; groups of the route's pattern are added with a _ before their names.
        headers: values of the headers by name in lower case.
        body: the body.
        operation, bucket, name: operation, bucket and object, which `route` sets.
        is_corrupt: whether a fault changes the uploaded bytes.
        is_cut: whether a fault ends the body after half of its bytes.
    """

    method: str
    path: str
    base: str
    query: dict[str, str]
    headers: Mapping[str, str]
    body: bytes = b""
    operation: str = "other"
    bucket: str = ""
    name: str = ""
    is_corrupt: bool = False
    is_cut: bool = False

    def json(self) -> dict[str, Any]:
        """Return the body as a JSON object; an empty one if there is no body."""
        value: dict[str, Any] = json.loads(self.body) if self.body.strip() else {}
        return value

    def parse_parts(self) -> EmailMessage:
        """Return the body of a multipart request as a message with its parts."""
        head = f"Content-Type: {self.headers['content-type']}\r\n\r\n".encode()
        message = email.parser.BytesParser(policy=email.policy.HTTP).parsebytes(head + self.body)
        assert isinstance(message, EmailMessage)
        return message

    def corrupt(self, data: bytes) -> bytes:
        """Return uploaded bytes, changed if the fault of the request says so."""
        return flip_bit(data) if self.is_corrupt else data


class Answer(NamedTuple):
    """A response: status code, body and headers."""

    code: int
    body: bytes | memoryview
    headers: dict[str, str]


def make_json_answer(value: Any, code: int = 200) -> Answer:
    """Return an answer with a JSON value."""
    return Answer(code, json.dumps(value).encode(), {"Content-Type": "application/json; charset=UTF-8"})


def make_error_answer(code: int, message: str) -> Answer:
    """Return an error in the form of the JSON API."""
    errors = [{"message": message, "domain": "global", "reason": "fake"}]
    return make_json_answer({"error": {"code": code, "message": message, "errors": errors}}, code)


def flip_bit(data: bytes) -> bytes:
    """Return bytes with one bit changed, in the middle; empty bytes stay."""
    if not data:
        return data
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]

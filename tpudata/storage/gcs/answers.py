"""Proof that an answer is the store's and whole. Any other answer is a transport fault, and its request is sent again.

A proxy may answer 200 with nothing or with a page of HTML, cut a body and its Content-Length alike, drop headers, or change a bit.
What proves an answer:

    JSON            it came packed, so with gzip's checksum, or came twice the same; it is of the kind that was asked for
    whole object    the CRC-32C of the header X-Goog-Hash, or else size and CRC-32C that a stat gives
    part            status 206, a Content-Range of what was asked for, and as many bytes; no checksum goes with it
    upload          generation, size and CRC-32C of what was sent, or else a stat that gives them
    deletion        204 or 404, or else a stat that finds nothing
"""

from __future__ import annotations

import base64
import gzip
import json
import re
import zlib
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar
from urllib.parse import quote

import google_crc32c
import requests
from google.api_core import exceptions as api

from tpudata.storage.gcs.retry_policy import UnprovenError
from tpudata.storage.gcs.session import Session

T = TypeVar("T")
# Google's servers pack JSON only if both say so.
_PACKED = {"Accept-Encoding": "gzip", "User-Agent": "tpudata (gzip)"}
_STATED = "kind,size,generation,crc32c,contentEncoding"
_OBJECT, _LISTING = "storage#object", "storage#objects"
_CRC32C = re.compile(r"crc32c=([A-Za-z0-9+/]+=*)")
_CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+)")
_OK, _PARTIAL, _ABSENT = 200, 206, 404
_PLAIN = (None, "", "identity")


class Stated(NamedTuple):
    """The store's description of an object.

    Attributes:
        size: bytes.
        generation: number of this version, above 0.
        crc32c: checksum as the API writes it, or None if the store gives none.
        encoding: its Content-Encoding, or None.
    """

    size: int
    generation: int
    crc32c: str | None
    encoding: str | None = None


class Listed(NamedTuple):
    """One page of a listing.

    Attributes:
        objects: name, size in bytes and checksum of each object.
        prefixes: names up to the delimiter, each once.
        next_page: token of the next page, or None.
    """

    objects: list[tuple[str, int, str | None]]
    prefixes: list[str]
    next_page: str | None


def object_url(bucket: str, name: str) -> str:
    """Return the JSON API's path of an object."""
    return f"/storage/v1/b/{quote(bucket, safe='')}/o/{quote(name, safe='')}"


def checksum_text(crc32c: int) -> str:
    """Return a CRC-32C as the API writes it: base64 of the big-endian bytes."""
    return base64.b64encode(crc32c.to_bytes(4, "big")).decode()


def checksum_number(text: str | None) -> int | None:
    """Return the CRC-32C that the API writes so, or None if there is none."""
    return None if text is None else int.from_bytes(base64.b64decode(text), "big")


def stat_object(session: Session, bucket: str, name: str) -> Stated | None:
    """Return the store's description of an object, or None if there is no such object."""
    try:
        return _ask(session, f"{object_url(bucket, name)}?fields={_STATED}", stated)
    except api.NotFound:
        return None


def list_page(session: Session, bucket: str, query: str) -> Listed:
    """Return one page of a listing; `query` is the URL's."""
    fields = "kind,items(name,size,crc32c),prefixes,nextPageToken"
    return _ask(session, f"/storage/v1/b/{quote(bucket, safe='')}/o?fields={fields}&{query}", _listed)


def stated(fields: dict[str, Any]) -> Stated:
    """Return the description of an object in a JSON answer.

    Raises:
        UnprovenError: the answer is not a description.
    """
    try:
        if fields["kind"] != _OBJECT:
            raise ValueError(fields["kind"])
        found = Stated(int(fields["size"]), int(fields["generation"]), _checksum(fields), fields.get("contentEncoding"))
    except (KeyError, ValueError, TypeError) as error:
        raise UnprovenError(f"an answer that describes no object ({error!r})") from None
    if found.size < 0 or found.generation <= 0:
        raise UnprovenError(f"an answer of size {found.size} and generation {found.generation}")
    return found


def json_fields(data: bytes) -> dict[str, Any]:
    """Return the JSON object that an answer's body is.

    Raises:
        UnprovenError: it is something else.
    """
    try:
        fields = json.loads(data)
    except (ValueError, RecursionError):
        fields = None
    if not isinstance(fields, dict):
        raise UnprovenError(f"an answer that is no JSON object ({len(data)} bytes, {data[:20]!r})")
    return fields


def check_whole(response: requests.Response, data: bytes, stat: Callable[[], Stated | None]) -> None:
    """Check that an answer holds a whole object.

    Args:
        response: the answer.
        data: its body.
        stat: asks for the description of the object; called only if the answer has no checksum.

    Raises:
        UnprovenError: it does not, or nothing says that it does.
    """
    if response.status_code != _OK:
        raise UnprovenError(f"an answer {response.status_code} to a read")
    header = _CRC32C.search(response.headers.get("X-Goog-Hash", ""))
    if header is not None:
        if header[1] != checksum_text(google_crc32c.value(data)):
            raise UnprovenError("what came does not fit the store's checksum")
        return
    found = stat()
    if found is None or found.size != len(data):
        raise UnprovenError(f"{len(data)} bytes came, and the store says {found and found.size}")
    if found.crc32c not in (None, checksum_text(google_crc32c.value(data))):
        raise UnprovenError("what came does not fit the store's checksum")


def check_part(response: requests.Response, data: bytes, offset: int, length: int) -> bool:
    """Check that an answer holds `length` bytes from `offset` on, or those up to the object's end.

    Returns:
        Whether these are the whole object and fit its checksum; nothing guards the bytes of other parts.

    Raises:
        UnprovenError: it holds others.
    """
    said = _CONTENT_RANGE.fullmatch(response.headers.get("Content-Range", ""))
    if response.status_code != _PARTIAL or said is None:
        raise UnprovenError(f"an answer {response.status_code} without the range that was asked for")
    begin, last, size = map(int, said.groups())
    if (begin, last) != (offset, min(offset + length, size) - 1) or len(data) != last - begin + 1:
        raise UnprovenError(f"{len(data)} bytes of {said[0]} came for {length} from {offset} on")
    header = _CRC32C.search(response.headers.get("X-Goog-Hash", ""))
    if len(data) < size or header is None:
        return False
    if header[1] != checksum_text(google_crc32c.value(data)):
        raise UnprovenError("what came does not fit the store's checksum")
    return True


def is_encoded(response: requests.Response) -> bool:
    """Return whether a response body is content-encoded."""
    return response.headers.get("Content-Encoding") not in _PLAIN


def _ask(session: Session, url: str, parse: Callable[[dict[str, Any]], T]) -> T:
    """Return what `parse` makes of a JSON answer that proves itself."""

    def once() -> tuple[T, bool]:
        try:
            response, data = session.fetch(url, _PACKED)
        except api.NotFound as error:
            _check_absent(error)
            raise
        if response.status_code != _OK:
            raise UnprovenError(f"an answer {response.status_code} to a question")
        is_packed = response.headers.get("Content-Encoding") == "gzip"
        try:
            data = gzip.decompress(data) if is_packed else data
        except (OSError, EOFError, zlib.error) as error:
            raise UnprovenError(f"an answer that does not unpack ({error})") from None
        return parse(json_fields(data)), is_packed

    def ask() -> T:
        answer, is_packed = once()
        if not is_packed and once()[0] != answer:
            raise UnprovenError("two answers to one question differ")
        return answer

    return session.with_retries(ask)


def _check_absent(error: api.NotFound) -> None:
    """Raise UnprovenError unless an answer 404 is the store's own, in JSON."""
    response = error.response
    fields = json_fields(b"" if response is None else response.content)
    if not isinstance(fields.get("error"), dict) or fields["error"].get("code") != _ABSENT:
        raise UnprovenError("an answer 404 that is not the store's") from None


def _listed(fields: dict[str, Any]) -> Listed:
    try:
        if fields["kind"] != _LISTING:
            raise ValueError(fields["kind"])
        objects = [(item["name"], int(item["size"]), _checksum(item)) for item in fields.get("items", ())]
        prefixes = list(map(str, fields.get("prefixes", ())))
    except (KeyError, ValueError, TypeError) as error:
        raise UnprovenError(f"an answer that is no listing ({error!r})") from None
    return Listed(objects, prefixes, fields.get("nextPageToken"))


def _checksum(fields: dict[str, Any]) -> str | None:
    found = fields.get("crc32c")
    if found is not None and len(base64.b64decode(found, validate=True)) != 4:
        raise ValueError(f"crc32c {found!r}")
    return found

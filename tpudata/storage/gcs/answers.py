"""Proof that an answer is the store's and complete. Any other answer is a transport fault, and its request is retried.

A proxy may answer 200 with nothing or with a page of HTML, cut a body and its Content-Length alike, drop headers, or change a bit.
Proofs of an answer:

    JSON            gzip's checksum, or two equal answers; an object of the requested kind
    whole object    the CRC-32C in the header X-Goog-Hash, or else size and CRC-32C from a stat
    part            status 206, the requested Content-Range and as many bytes; there is no checksum
    upload          generation, size and CRC-32C of the data that were sent, or else a stat with them
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
# Google's servers compress JSON only if both headers allow it.
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
        crc32c: checksum as the API writes it, or None if the store has none.
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
    """Return the CRC-32C in the API's notation as a number, or None if there is none."""
    return None if text is None else int.from_bytes(base64.b64decode(text), "big")


def stat_object(session: Session, bucket: str, name: str) -> Stated | None:
    """Return the store's description of an object, or None if there is no such object."""
    try:
        return _ask(session, f"{object_url(bucket, name)}?fields={_STATED}", stated)
    except api.NotFound:
        return None


def list_page(session: Session, bucket: str, query: str) -> Listed:
    """Return one page of a listing; `query` is that of the URL."""
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
    """Return the JSON object in an answer's body.

    Raises:
        UnprovenError: the body is not a JSON object.
    """
    try:
        fields = json.loads(data)
    except (ValueError, RecursionError):
        fields = None
    if not isinstance(fields, dict):
        raise UnprovenError(f"an answer that is not a JSON object ({len(data)} bytes, {data[:20]!r})")
    return fields


def check_whole(response: requests.Response, data: bytes, stat: Callable[[], Stated | None]) -> None:
    """Check that an answer holds a whole object.

    Args:
        response: the answer.
        data: its body.
        stat: requests the description of the object; called only if the answer has no checksum.

    Raises:
        UnprovenError: it does not, or there is no proof that it does.
    """
    if response.status_code != _OK:
        raise UnprovenError(f"an answer {response.status_code} to a read")
    header = _CRC32C.search(response.headers.get("X-Goog-Hash", ""))
    if header is not None:
        if header[1] != checksum_text(google_crc32c.value(data)):
            raise UnprovenError("the received data do not match the store's checksum")
        return
    found = stat()
    if found is None or found.size != len(data):
        raise UnprovenError(f"received {len(data)} bytes of an object of {found and found.size}")
    if found.crc32c not in (None, checksum_text(google_crc32c.value(data))):
        raise UnprovenError("the received data do not match the store's checksum")


def check_part(response: requests.Response, data: bytes, offset: int, length: int) -> bool:
    """Check that an answer holds `length` bytes from `offset` on, or those up to the object's end.

    Returns:
        Whether these are the whole object and match its checksum; other parts have no checksum.

    Raises:
        UnprovenError: it holds other bytes.
    """
    content_range = _CONTENT_RANGE.fullmatch(response.headers.get("Content-Range", ""))
    if response.status_code != _PARTIAL or content_range is None:
        raise UnprovenError(f"an answer {response.status_code} without the requested range")
    begin, last, size = map(int, content_range.groups())
    if (begin, last) != (offset, min(offset + length, size) - 1) or len(data) != last - begin + 1:
        raise UnprovenError(f"received {len(data)} bytes as {content_range[0]} for {length} bytes from {offset} on")
    header = _CRC32C.search(response.headers.get("X-Goog-Hash", ""))
    if len(data) < size or header is None:
        return False
    if header[1] != checksum_text(google_crc32c.value(data)):
        raise UnprovenError("the received data do not match the store's checksum")
    return True


def is_encoded(response: requests.Response) -> bool:
    """Return whether a response body is content-encoded."""
    return response.headers.get("Content-Encoding") not in _PLAIN


def _ask(session: Session, url: str, parse: Callable[[dict[str, Any]], T]) -> T:
    """Return the result of `parse` for a proven JSON answer."""

    def once() -> tuple[T, bool]:
        try:
            response, data = session.fetch(url, _PACKED)
        except api.NotFound as error:
            _check_absent(error)
            raise
        if response.status_code != _OK:
            raise UnprovenError(f"an answer {response.status_code} to a request for JSON")
        is_packed = response.headers.get("Content-Encoding") == "gzip"
        try:
            data = gzip.decompress(data) if is_packed else data
        except (OSError, EOFError, zlib.error) as error:
            raise UnprovenError(f"an answer that does not unpack ({error})") from None
        return parse(json_fields(data)), is_packed

    def ask() -> T:
        answer, is_packed = once()
        if not is_packed and once()[0] != answer:
            raise UnprovenError("two answers to one request differ")
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
        raise UnprovenError(f"an answer that is not a listing ({error!r})") from None
    return Listed(objects, prefixes, fields.get("nextPageToken"))


def _checksum(fields: dict[str, Any]) -> str | None:
    found = fields.get("crc32c")
    if found is not None and len(base64.b64decode(found, validate=True)) != 4:
        raise ValueError(f"crc32c {found!r}")
    return found

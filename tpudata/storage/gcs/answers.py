"""Parsing of Google Cloud Storage's JSON answers, accepted only if proven: by gzip's checksum, or by two equal answers."""

from __future__ import annotations

import base64
import gzip
import json
import zlib
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar
from urllib.parse import quote

from tpudata.storage.gcs.transport import Transport
from tpudata.storage.objects.errors import AbsentError, UnprovenError
from tpudata.storage.objects.object_store import Description

T = TypeVar("T")
# Google's servers compress JSON only if both headers allow it.
_GZIP_HEADERS = {"Accept-Encoding": "gzip", "User-Agent": "tpudata (gzip)"}
_DESCRIPTION_FIELDS = "kind,size,generation,crc32c,contentEncoding"
# Values of "kind" in the store's JSON.
_OBJECT, _LISTING = "storage#object", "storage#objects"
_OK = 200


class ListingPage(NamedTuple):
    """One page of a listing.

    Attributes:
        objects: name, size in bytes and CRC-32C of each object; None for a checksum that the store does not state.
        prefixes: common beginnings of names up to the delimiter, each once.
        next_page: token of the next page; None for the last page.
    """

    objects: list[tuple[str, int, int | None]]
    prefixes: list[str]
    next_page: str | None


def make_object_url(bucket: str, name: str) -> str:
    """Return the JSON API's path of an object."""
    return f"/storage/v1/b/{quote(bucket, safe='')}/o/{quote(name, safe='')}"


def encode_checksum(crc32c: int) -> str:
    """Return a CRC-32C as the API writes it: base64 of the big-endian bytes."""
    return base64.b64encode(crc32c.to_bytes(4, "big")).decode()


def describe_object(transport: Transport, bucket: str, name: str) -> Description | None:
    """Return the store's description of an object, without retries; None if the object does not exist."""
    try:
        return _ask(transport, f"{make_object_url(bucket, name)}?fields={_DESCRIPTION_FIELDS}", parse_description)
    except AbsentError:
        return None


def list_page(transport: Transport, bucket: str, query: str) -> ListingPage:
    """Return one page of a listing, without retries; `query` is the part of the URL that selects names."""
    fields = "kind,items(name,size,crc32c),prefixes,nextPageToken"
    return _ask(transport, f"/storage/v1/b/{quote(bucket, safe='')}/o?fields={fields}&{query}", _parse_page)


def parse_description(data: bytes) -> Description:
    """Return the description of an object in a JSON answer.

    Raises:
        UnprovenError: the answer is not a description.
    """
    fields = _parse_json(data, _OBJECT)
    try:
        description = Description(
            int(fields["size"]), int(fields["generation"]), _parse_checksum(fields), fields.get("contentEncoding")
        )
    except (KeyError, ValueError, TypeError) as error:
        raise UnprovenError(f"an answer that describes no object ({error!r})") from None
    if description.size < 0 or description.version <= 0:
        raise UnprovenError(f"an answer of size {description.size} and generation {description.version}")
    return description


def _ask(transport: Transport, url: str, parse: Callable[[bytes], T]) -> T:
    """Return the parsed JSON answer to a GET request, once a checksum or a second, equal answer proves it.

    Raises:
        UnprovenError: an answer is not the store's JSON, or two answers differ.
    """
    parsed, has_checksum = _ask_once(transport, url, parse)
    if not has_checksum:
        second_parsed, _ = _ask_once(transport, url, parse)
        if second_parsed != parsed:
            raise UnprovenError("two answers to one request differ")
    return parsed


def _ask_once(transport: Transport, url: str, parse: Callable[[bytes], T]) -> tuple[T, bool]:
    """Return one parsed answer, and whether it came with gzip's checksum.

    Raises:
        UnprovenError: the answer is not the store's JSON, or does not unpack.
        AbsentError: the store says that the object does not exist.
    """
    try:
        answer = transport.request("GET", url, _GZIP_HEADERS)
    except AbsentError as error:
        if not error.is_described:
            raise UnprovenError("an answer 404 that is not the store's") from None
        raise
    if answer.status != _OK:
        raise UnprovenError(f"an answer {answer.status} to a request for JSON")
    is_compressed = answer.headers.get("Content-Encoding") == "gzip"
    try:
        data = gzip.decompress(answer.data) if is_compressed else answer.data
    except (OSError, EOFError, zlib.error) as error:
        raise UnprovenError(f"an answer that does not unpack ({error})") from None
    return parse(data), is_compressed


def _parse_json(data: bytes, kind: str) -> dict[str, Any]:
    """Return the object of a JSON answer; UnprovenError unless its value of "kind" is `kind`."""
    try:
        fields = json.loads(data)
    except (ValueError, RecursionError):
        fields = None
    if not isinstance(fields, dict) or fields.get("kind") != kind:
        raise UnprovenError(f"an answer that is not a {kind} in JSON ({len(data)} bytes, {data[:20]!r})")
    return fields


def _parse_page(data: bytes) -> ListingPage:
    """Return the page of a listing in a JSON answer; UnprovenError if the answer is not a listing."""
    fields = _parse_json(data, _LISTING)
    try:
        objects = [(item["name"], int(item["size"]), _parse_checksum(item)) for item in fields.get("items", ())]
        prefixes = list(map(str, fields.get("prefixes", ())))
    except (KeyError, ValueError, TypeError) as error:
        raise UnprovenError(f"an answer that is not a listing ({error!r})") from None
    return ListingPage(objects, prefixes, fields.get("nextPageToken"))


def _parse_checksum(fields: dict[str, Any]) -> int | None:
    """Return the CRC-32C in the description of an object; None if it states no checksum; ValueError if the checksum is damaged."""
    text = fields.get("crc32c")
    if text is None:
        return None
    data = base64.b64decode(text, validate=True)
    if len(data) != 4:
        raise ValueError(f"crc32c {text!r}")
    return int.from_bytes(data, "big")

"""Listing of the names below a folder of Google Cloud Storage, whole or in ranges, and the cuts between ranges.

The store lists a thousand names a request, one request after the other, so a hundred million names take a worker hours. It does not
count names, but it returns the first one after any name. A large folder is cut where its names first differ: the character after
their common prefix has a few values, and each begins a range. Large ranges are cut again in the same way.
"""

from __future__ import annotations

import bisect
import functools
import itertools
import operator
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, NoReturn, TypeAlias
from urllib.parse import urlencode

from tpudata.errors import StorageError
from tpudata.storage.gcs.answers import list_page
from tpudata.storage.gcs.errors import split_path, translate_errors
from tpudata.storage.gcs.transport import Transport

# Ranges of at most this number of names are not divided: listing one takes up to 17 requests.
RANGE_NAMES = 1 << 14
# Cutting ends after the round that reaches this number of ranges, or after this number of rounds.
_ENOUGH_RANGES = 256
_MAX_ROUNDS = 8
# Number of ranges that each span one value of the differing character; later ranges span 2, 4, ... values, since some scripts have
# thousands of characters.
_SINGLE_CHARACTERS = 16
_PARALLEL_REQUESTS = 16
# Names in an answer of the store.
_PAGE_NAMES = 1000
# The last character of Unicode.
_LAST_CHARACTER = "\U0010ffff"
# The characters before and after the surrogates, which UTF-8 cannot encode.
_BEFORE_SURROGATES, _AFTER_SURROGATES = "\ud7ff", "\ue000"


# Returns the first name of a range, or None if the range is empty, given its start and its stop.
_FindFirst: TypeAlias = Callable[[str, str | None], str | None]


class Name(NamedTuple):
    """A name in a listing.

    Attributes:
        name: name of an object in the bucket, or common prefix of names up to a `/`.
        size: bytes, or None for a folder.
        crc32c: CRC-32C; None for a folder, or if the store states none.
    """

    name: str
    size: int | None
    crc32c: int | None


def scan_names(
    transport: Transport, folder: str, start: str = "", stop: str | None = None, limit: int | None = None, *, deep: bool
) -> Iterator[Name]:
    """Yield the names below a folder in order, including the object that marks the folder itself.

    Args:
        transport: sends the requests.
        folder: folder to list.
        start: first name of the range, below the folder.
        stop: first name after the range, below the folder; None for a range up to the folder's end.
        limit: number of names that the caller will take, for smaller pages; more may be yielded. None for all names.
        deep: whether to list all objects below the folder, and no folders; otherwise the folder's own objects and folders.

    Raises:
        StorageError: the folder cannot be listed, or a name has an empty part, which is not a folder.
    """
    bucket, name = split_path(folder)
    prefix = f"{name.rstrip('/')}/" if name else ""
    query = {"prefix": prefix}
    if not deep:
        query["delimiter"] = "/"
    if start:
        query["startOffset"] = prefix + start
    if stop is not None:
        query["endOffset"] = prefix + stop
    if limit is not None and limit < _PAGE_NAMES:
        # One more, for the object that marks the folder.
        query["maxResults"] = str(limit + 1)
    # A page may begin with the folder that ended the page before.
    last_prefix = ""
    while True:
        with translate_errors("listed", folder):
            page = transport.retries.run(functools.partial(list_page, transport, bucket, urlencode(query)))
        page_names = [Name(*listed_object) for listed_object in page.objects]
        page_names += [
            Name(folder_name, size=None, crc32c=None) for folder_name in page.prefixes if folder_name != last_prefix
        ]
        for listed_name in sorted(page_names, key=operator.attrgetter("name")):
            name_below = listed_name.name[len(prefix) :]
            if name_below.startswith("/") or "//" in name_below:
                _reject_empty_part(folder, bucket, listed_name.name, len(prefix))
            # The store compares the names of objects: it also lists a folder that sorts before `start` if it has objects after it.
            if start <= name_below and (stop is None or name_below < stop):
                yield listed_name
        last_prefix = max(page.prefixes, default=last_prefix)
        if page.next_page is None:
            return
        query["pageToken"] = page.next_page


def cut_names(transport: Transport, folder: str, *, deep: bool, max_range_names: int = RANGE_NAMES) -> Sequence[str]:
    """Return ascending names that divide a folder into ranges; empty if it is small.

    Args:
        transport: sends the requests.
        folder: folder whose names are cut.
        deep: whether to cut the names of all objects below it, and of no folders.
        max_range_names: maximum number of names in a folder, or in a range of it, that is left whole; a larger one is cut if its
            names allow.
    """
    _, folder_name = split_path(folder)
    prefix_length = len(folder_name.rstrip("/")) + 1 if folder_name else 0

    def find_first(start: str, stop: str | None) -> str | None:
        """Return the first name of a range, below the folder; None if the range is empty."""
        listed_name = next(scan_names(transport, folder, start, stop, limit=1, deep=deep), None)
        return None if listed_name is None else listed_name.name[prefix_length:]

    def cut_range(start: str, stop: str | None, range_count: int) -> list[str]:
        """Return the starts of the parts of a range; empty if it is small or cannot be cut.

        Args:
            start: start of the range.
            stop: first name after the range; None for a range up to the folder's end.
            range_count: number of ranges that are cut in this round. With more of them, each is cut into fewer, wider parts, so
                that the number of all parts stays limited.
        """
        names = scan_names(transport, folder, start, stop, deep=deep)
        # The range is small, unless there is a name after the first `max_range_names`.
        is_small = next(itertools.islice(names, max_range_names, None), None) is None
        if is_small:
            return []
        cuts = list(_find_cuts(find_first, start, stop, cuts_per_doubling=max(1, _SINGLE_CHARACTERS // range_count)))
        return [start, *cuts] if cuts else []

    # The first range begins at the start of the folder. This start is not among the names that are returned.
    starts = [""]
    # Starts of the ranges that may be large: all parts of the ranges that were cut in the last round.
    uncut_starts = {""}
    with ThreadPoolExecutor(_PARALLEL_REQUESTS, thread_name_prefix="tpudata-cut") as pool:
        for _ in range(_MAX_ROUNDS):
            ranges = [
                (start, stop) for start, stop in zip(starts, [*starts[1:], None], strict=True) if start in uncut_starts
            ]
            if not ranges or len(starts) >= _ENOUGH_RANGES:
                break
            range_starts, range_stops = zip(*ranges, strict=True)
            parts = pool.map(cut_range, range_starts, range_stops, itertools.repeat(len(ranges)))
            uncut_starts = set(itertools.chain.from_iterable(parts))
            starts = sorted({*starts, *uncut_starts})
    return tuple(starts[1:])


def _find_cuts(find_first: _FindFirst, start: str, stop: str | None, cuts_per_doubling: int) -> Iterator[str]:
    """Yield names that divide a range of more than one name: prefixes that end with the first character that differs between names.

    Args:
        find_first: returns the first name of a range.
        start: start of the range.
        stop: first name after the range; None for a range up to the folder's end.
        cuts_per_doubling: the first `_SINGLE_CHARACTERS` parts each span one value of the differing character; after that, the span
            of a part doubles every `cuts_per_doubling` cuts.
    """
    first_name = find_first(start, stop)
    depth = 0
    for _ in range(_MAX_ROUNDS):
        if first_name is None:
            return
        # Length of the prefix that all names share: the least depth for which `_has_names_after` is true.
        depth = bisect.bisect_left(
            range(len(first_name)), True, key=functools.partial(_has_names_after, find_first, first_name, stop)
        )
        if depth < len(first_name):
            break
        # All other names begin with the whole first name: continue from the first other name.
        first_name = find_first(f"{first_name}\0", stop)
    if first_name is None or depth >= len(first_name):
        return
    common_prefix, character = first_name[:depth], first_name[depth]
    for cut_index in itertools.count():
        # Find the first name whose character at this depth is `step` or more after the character of the last cut.
        step = 1 << max(0, (cut_index - _SINGLE_CHARACTERS) // cuts_per_doubling + 1)
        next_character = _step_character(character, step)
        name = find_first(common_prefix + next_character, stop) if next_character else None
        # There are no more names, or other writers have added or removed some in the meantime.
        if name is None or not name.startswith(common_prefix):
            return
        character = name[depth]
        yield common_prefix + character


def _has_names_after(find_first: _FindFirst, name: str, stop: str | None, depth: int) -> bool:
    """Return whether names before `stop` follow all names with the first `depth + 1` characters of `name`."""
    # Nothing follows the last character of Unicode, so the character before it is raised.
    prefix = name[: depth + 1].rstrip(_LAST_CHARACTER)
    return bool(prefix) and find_first(prefix[:-1] + _step_character(prefix[-1]), stop) is not None


def _step_character(character: str, step: int = 1) -> str:
    """Return the character some steps later, or the next one that UTF-8 can encode; an empty string after the last."""
    code = ord(character) + step
    if code > ord(_LAST_CHARACTER):
        return ""
    return _AFTER_SURROGATES if _BEFORE_SURROGATES < chr(code) < _AFTER_SURROGATES else chr(code)


def _reject_empty_part(folder: str, bucket: str, name: str, prefix_length: int) -> NoReturn:
    """Raise StorageError for an object's name with two slashes in a row after the folder's prefix."""
    # The slash at the end of the prefix may be the first of the two, so the search begins there.
    position = name.find("//", max(0, prefix_length - 1))
    before = name[: position + 1]
    raise StorageError(
        f"{folder} could not be listed: the name of an object below it has an empty part, which is not a folder:"
        f" gs://{bucket}/{before}/... Give it another name: `gcloud storage mv 'gs://{bucket}/{before}/*'"
        f" gs://{bucket}/...`."
    )

"""The layer that verifies answers, over a store in memory whose answers can be wrong.

No store gives wrong answers when asked to.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import BinaryIO

import google_crc32c
import pytest

from tpudata.errors import StorageError, StorageUnavailableError
from tpudata.storage import Entry
from tpudata.storage.objects.checked_storage import CheckedStorage
from tpudata.storage.objects.errors import (
    AbsentError,
    ConflictError,
    RangeError,
    StoreError,
    TimeLimitError,
    UnprovenError,
)
from tpudata.storage.objects.object_store import Content, Description
from tpudata.storage.objects.retries import Retries, RetryPolicy

DATA = bytes(range(200))


class MemoryStore:
    """One object, `x`, of DATA; each answer to a read is changed by the next of `faults`, and by the last one for ever."""

    lists_deep = False

    def __init__(self, *, has_checksums: bool = True, states_checksum: bool = True) -> None:
        self.has_checksums = has_checksums
        self.states_checksum = has_checksums and states_checksum
        self.data: bytes | None = DATA
        self.version = 1
        self.faults: list[Callable[[Content], Content]] = []
        self.reads = 0
        policy = RetryPolicy(first_wait=0.0001, longest_wait=0.0001, limit=0.05)
        self.retries = Retries("memory", lambda: policy, lambda error: isinstance(error, UnprovenError))

    @contextlib.contextmanager
    def translate_errors(self, action: str, path: str) -> Iterator[None]:
        try:
            yield
        except StoreError as error:
            kind = StorageUnavailableError if isinstance(error, TimeLimitError) else StorageError
            raise kind(f"{path} could not be {action}: {error.__cause__ or error}") from error

    def describe(self, path: str) -> Description | None:
        del path
        if self.data is None:
            return None
        return Description(len(self.data), self.version, google_crc32c.value(self.data) if self.has_checksums else None)

    def find(self, path: str) -> Entry | None:
        found = self.describe(path)
        return found and Entry(path, path, found.size, False, found.crc32c)

    def get(self, path: str, span: tuple[int, int] | None, version: int | None) -> Content:
        del path
        self.reads += 1
        if self.data is None or version not in (None, self.version):
            raise AbsentError(404, "no such object")
        offset, length = span or (0, len(self.data))
        if span is not None and offset >= len(self.data):
            raise RangeError(416, "after the end")
        data = self.data[offset : offset + length]
        crc32c = google_crc32c.value(self.data) if self.states_checksum else None
        content = Content(data, span is None, offset, len(self.data) if self.has_checksums else None, crc32c)
        if not self.faults:
            return content
        return self.faults.pop(0)(content)

    def remove(self, path: str, version: int | None) -> None:
        self.put(path, b"", version)
        self.data = None

    def put(self, path: str, data: bytes, version: int | None) -> None:
        del path
        if version is not None and version != self.version:
            raise ConflictError(412, "another version")
        assert isinstance(data, bytes)
        self.data, self.version = data, self.version + 1

    def scan(self, folder: str, start: str, stop: str | None, limit: int | None, *, deep: bool) -> Iterator[Entry]:
        raise NotImplementedError

    def cuts(self, folder: str, *, deep: bool) -> Sequence[str]:
        raise NotImplementedError

    def write(self, path: str, *, replace: bool) -> AbstractContextManager[BinaryIO]:
        raise NotImplementedError

    def check_writable(self, path: str) -> None:
        raise NotImplementedError


def absent(_: Content) -> Content:
    raise AbsentError(404, "a proxy's")


def after_the_end(_: Content) -> Content:
    raise RangeError(416, "a proxy's")


FAULTS: dict[str, Callable[[Content], Content]] = {
    "cut": lambda content: content._replace(data=content.data[:-1]),
    "longer": lambda content: content._replace(data=content.data + b"x"),
    "changed": lambda content: content._replace(data=content.data[:-1] + b"x"),
    "empty": lambda content: content._replace(data=b""),
    "moved": lambda content: content._replace(offset=content.offset + 1),
    "absent": absent,
    "after the end": after_the_end,
}
READS: dict[str, Callable[[CheckedStorage], bytes]] = {
    "whole": lambda storage: storage.read("x"),
    "first": lambda storage: storage.read_range("x", 0, 50),
    "middle": lambda storage: storage.read_range("x", 50, 50),
    "end": lambda storage: storage.read_range("x", 150, 100),
    "all": lambda storage: storage.read_range("x", 0, 500),
    "checked": lambda storage: storage.read_range("x", 50, 50, is_checked=True),
}
DUE = {
    "whole": DATA,
    "first": DATA[:50],
    "middle": DATA[50:100],
    "end": DATA[150:],
    "all": DATA,
    "checked": DATA[50:100],
}


@pytest.fixture(params=["checksums", "checksum of descriptions", "no checksums"])
def store(request: pytest.FixtureRequest) -> MemoryStore:
    return MemoryStore(has_checksums=request.param != "no checksums", states_checksum=request.param == "checksums")


# A whole object has no place, and without a checksum nothing shows that it was changed; whoever checks a part notices that.
_UNNOTICED = (("whole", "moved"), ("whole", "after the end"), ("whole", "changed"), ("checked", "changed"))
CELLS = [(read, kind) for read in READS for kind in FAULTS if (read, kind) not in _UNNOTICED]


@pytest.mark.parametrize(("read", "kind"), CELLS)
def test_repeats_a_request_after_a_wrong_answer(store: MemoryStore, read: str, kind: str) -> None:
    storage = CheckedStorage(store)
    assert READS[read](storage) == DUE[read]
    reads = store.reads
    store.faults = [FAULTS[kind]]
    assert READS[read](storage) == DUE[read]
    assert not store.faults
    assert store.reads > 2 * reads


@pytest.mark.parametrize("states_checksum", [True, False])
def test_compares_a_whole_object_with_its_checksum(states_checksum: bool) -> None:
    store = MemoryStore(states_checksum=states_checksum)
    store.faults = [FAULTS["changed"]]
    assert CheckedStorage(store).read("x", len(DATA)) == DATA
    assert store.reads == 2


@pytest.mark.parametrize("kind", ["cut", "longer", "empty", "absent"])
@pytest.mark.parametrize("read", READS)
def test_raises_an_error_if_answers_stay_wrong(store: MemoryStore, read: str, kind: str) -> None:
    store.faults = [FAULTS[kind]] * 10_000
    with pytest.raises(StorageUnavailableError, match="x could not be read: "):
        READS[read](CheckedStorage(store))


def test_reads_a_part_twice_unless_the_caller_checks_it(store: MemoryStore) -> None:
    storage = CheckedStorage(store)
    for is_checked, reads in ((False, 2), (True, 1)):
        store.reads = 0
        assert storage.read_range("x", 50, 50, is_checked=is_checked) == DATA[50:100]
        assert store.reads == reads
    store.reads = 0
    assert storage.read_range("x", 0, 500) == DATA
    # All of it has a checksum.
    assert store.reads == (1 if store.states_checksum else 2)
    assert storage.read_range("x", 200, 10) == storage.read_range("x", 999, 10) == b""


def test_takes_a_part_from_an_answer_that_ignores_the_range(store: MemoryStore) -> None:
    def ignore_range(content: Content) -> Content:
        return content._replace(data=DATA, is_whole=True, offset=0)

    def ignore_range_and_cut(content: Content) -> Content:
        return content._replace(data=DATA[:-1], is_whole=True, offset=0)

    store.faults = [ignore_range]
    assert CheckedStorage(store).read_range("x", 0, 50) == DATA[:50]
    # The whole object is proven by its checksum or its size.
    assert store.reads == 1
    store.faults = [ignore_range]
    assert CheckedStorage(store).read_range("x", 50, 50) == DATA[50:100]
    store.faults, store.reads = [ignore_range_and_cut], 0
    assert CheckedStorage(store).read_range("x", 50, 50) == DATA[50:100]
    assert store.reads > 2


def test_an_open_object_reads_only_one_version(store: MemoryStore) -> None:
    storage = CheckedStorage(store)
    large = DATA * 50_000
    store.put("x", large, None)
    with storage.open("x") as file:
        assert file.read() == large
    # A part of 8 MiB, and the rest.
    assert store.reads == 2
    with storage.open("x") as file:
        store.put("x", large[::-1], None)
        with pytest.raises(StorageError, match="x could not be read: 404 "):
            file.read()


def test_swaps_and_deletes_only_the_version_that_was_read(store: MemoryStore) -> None:
    storage = CheckedStorage(store)
    assert not storage.swap("x", b"other", b"new")
    assert storage.swap("x", DATA, b"new")
    assert storage.read("x") == b"new"
    # Another writer comes between the read and the write.
    read = store.get

    def get(path: str, span: tuple[int, int] | None, version: int | None) -> Content:
        content = read(path, span, version)
        store.put("x", b"theirs", None)
        return content

    store.get = get  # type: ignore[method-assign]
    assert not storage.swap("x", b"new", b"mine")
    assert not storage.swap("x", b"theirs", None)
    store.get = read  # type: ignore[method-assign]
    assert storage.swap("x", b"theirs", None)
    assert storage.stat("x") is None
    storage.delete("x")
    with pytest.raises(StorageError, match="x could not be read: "):
        storage.read("x")

"""GcsStorage when gs:// fails: every operation with every fault."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from scripts.fake_gcs import FakeGcs, Fault
from tests.gcs.child import noise
from tpudata.errors import StorageError, StorageUnavailableError
from tpudata.storage.gcs import GcsStorage
from tpudata.storage.gcs.upload import PART_BYTES
from tpudata.storage.objects.retries import RetryPolicy

# LARGE has three parts of the smallest size that the store accepts, and a rest.
PART = PART_BYTES // 32
SMALL, LARGE = noise(1000, 1), noise(3 * PART + 12345, 2)
RETRY_POLICY = RetryPolicy(first_wait=0.002, longest_wait=0.05, limit=20, answer_within=10)


@pytest.fixture
def gcs(as_google: FakeGcs) -> GcsStorage:
    for name in ("a", "in/x", "in/y", "in/z/1"):
        as_google.put("data", name, SMALL)
    as_google.put("data", "large", LARGE)
    return GcsStorage(RETRY_POLICY, part_bytes=PART)


def listed(gcs: GcsStorage) -> Any:
    return [(entry.name, entry.size) for entry in gcs.list("gs://data/in")]


def looked_up(gcs: GcsStorage) -> Any:
    return gcs.stat("gs://data/a"), gcs.stat("gs://data/in"), gcs.stat("gs://data/none")


def read(gcs: GcsStorage) -> Any:
    return gcs.read("gs://data/large")


def read_part(gcs: GcsStorage) -> Any:
    return gcs.read_range("gs://data/large", 1000, 300_000), gcs.read_range("gs://data/large", len(LARGE), 5)


def read_on(gcs: GcsStorage) -> Any:
    with gcs.open("gs://data/large") as file:
        return file.read(5), file.read()


def write_small(gcs: GcsStorage) -> Any:
    with gcs.create("gs://data/new/small") as file:
        file.write(SMALL)
    return gcs.read("gs://data/new/small")


def write_large(gcs: GcsStorage) -> Any:
    with gcs.create("gs://data/new/large") as file:
        for begin in range(0, len(LARGE), 50_000):
            file.write(LARGE[begin : begin + 50_000])
    return gcs.read("gs://data/new/large")


def replace(gcs: GcsStorage) -> Any:
    with gcs.create("gs://data/a") as file:
        file.write(b"another")
    return gcs.read("gs://data/a")


def delete(gcs: GcsStorage) -> Any:
    gcs.delete("gs://data/a")
    return gcs.stat("gs://data/a")


OPERATIONS: dict[Callable[[GcsStorage], Any], tuple[str, ...]] = {
    listed: ("list",),
    looked_up: ("stat", "list"),
    read: ("read",),
    read_part: ("read",),
    read_on: ("stat", "read"),
    write_small: ("stat", "upload", "read"),
    write_large: ("stat", "upload", "part", "status", "read"),
    replace: ("stat", "upload", "read"),
    delete: ("delete", "stat"),
}
# The result of each operation without a fault, the same in all tests.
DUE: dict[Callable[[GcsStorage], Any], Any] = {}
TRANSIENT = ("429", "500", "503", "reset", "lost", "truncated", "slow", "expired")
UNPROVEN = ("empty", "html", "unsaid", "short", "duplicate")
OF_BYTES = {
    "corrupt": (listed, looked_up, read, read_part, write_small, replace, delete),
    "unhashed": (read, read_part),
    "cut": (write_small, write_large, replace),
}
WRITES = (write_small, write_large, replace, delete)
CELLS: list[Any] = [
    # An answer 500 is handled as 503 is, and a connection that is reset as one that is lost.
    pytest.param(kind, operation, marks=pytest.mark.matrix)
    if kind in ("500", "reset") and operation not in (read, write_large)
    else (kind, operation)
    for kind in TRANSIENT
    for operation in OPERATIONS
]
CELLS += [
    # A proxy or a second delivery affects all reads alike.
    (kind, operation)
    if operation in WRITES or kind == "html"
    else pytest.param(kind, operation, marks=pytest.mark.matrix)
    for kind in UNPROVEN
    for operation in OPERATIONS
]
CELLS += [(kind, operation) for kind, operations in OF_BYTES.items() for operation in operations]


@pytest.mark.parametrize(("kind", "operation"), CELLS, ids=lambda part: getattr(part, "__name__", part))
def test_passing_faults_are_retried_without_loss(
    as_google: FakeGcs, gcs: GcsStorage, kind: str, operation: Callable[[GcsStorage], Any]
) -> None:
    if operation not in DUE:
        DUE[operation] = operation(gcs)
        for name in [name for name in as_google.buckets["data"] if name.startswith("new/")]:
            del as_google.buckets["data"][name]
        as_google.put("data", "a", SMALL)
    # A damaged answer to the start of an upload, or to a deletion, has no body.
    sent = "part" if operation is write_large else "upload"
    of = {"cut": (sent,), "unhashed": ("read",)}.get(kind, OPERATIONS[operation])
    # The same damage to both deliveries of a part would pass.
    count = 1 if operation is read_part and kind in ("corrupt", "unhashed") else 2
    as_google.faults.add(*(Fault(kind, which, count=count, seconds=0.03) for which in of))
    assert operation(gcs) == DUE[operation]
    assert as_google.faults.met >= (1 if kind in ("slow", "duplicate") else count)
    # An upload whose id was lost in transit cannot be ended; the store drops it after a week.
    assert not as_google.uploads or kind in ("lost", "unsaid", "duplicate")


@pytest.mark.parametrize("passing", range(4))
def test_a_large_upload_survives_losing_any_part(as_google: FakeGcs, gcs: GcsStorage, passing: int) -> None:
    for kind in ("cut", "lost", "503"):
        as_google.faults.clear()
        as_google.faults.add(Fault(kind, "part", passing=passing))
        assert write_large(gcs) == LARGE
    assert as_google.faults.met == 3


def test_a_large_upload_damaged_in_transit_makes_no_object(as_google: FakeGcs, gcs: GcsStorage) -> None:
    as_google.faults.add(Fault("corrupt", "part", passing=3))
    with pytest.raises(StorageError, match="gs://data/new/large could not be written: the store received damaged data"):
        write_large(gcs)
    assert "new/large" not in as_google.buckets["data"]
    assert write_large(gcs) == LARGE


@pytest.mark.parametrize("kind", ["slow", "stall"])
def test_retries_a_stalled_answer(as_google: FakeGcs, gcs: GcsStorage, kind: str) -> None:
    as_google.faults.add(Fault(kind, "read", seconds=30))
    impatient = GcsStorage(RetryPolicy(first_wait=0.01, limit=20, answer_within=0.2))
    assert impatient.read("gs://data/large") == LARGE


@pytest.mark.parametrize("kind", ["429", "503", "reset", "truncated", "corrupt", "unhashed", "empty", "html", "short"])
def test_lasting_faults_end_at_the_time_limit(as_google: FakeGcs, gcs: GcsStorage, kind: str) -> None:
    impatient = GcsStorage(RetryPolicy(first_wait=0.02, limit=0.25))
    # Credentials and connection exist, so only retries take time.
    assert impatient.read("gs://data/a") == SMALL
    as_google.faults.add(Fault(kind, "read", count=None))
    with pytest.raises(StorageUnavailableError) as found:
        impatient.read("gs://data/a")
    assert "gs://data/a could not be read: " in str(found.value)
    assert "until the time limit of retries. Run again" in str(found.value)
    # With exponential backoff, 0.25 s allow few tries.
    assert 1 <= as_google.faults.met < 12


@pytest.mark.parametrize("packs", [True, False])
@pytest.mark.parametrize("bit", range(0, 8 * 150, 113))
def test_no_changed_bit_of_a_listing_or_a_stat_passes(
    as_google: FakeGcs, gcs: GcsStorage, monkeypatch: pytest.MonkeyPatch, packs: bool, bit: int
) -> None:
    as_google.packs = packs
    due = listed(gcs), looked_up(gcs)
    place, mask = bit // 8, 1 << bit % 8

    def spoiled(data: bytes) -> bytes:
        at = place % len(data)
        return data[:at] + bytes([data[at] ^ mask]) + data[at + 1 :]

    monkeypatch.setattr("scripts.fake_gcs.http.flip_bit", spoiled)
    as_google.faults.add(Fault("corrupt", "list"), Fault("corrupt", "stat"))
    assert (listed(gcs), looked_up(gcs)) == due
    assert as_google.faults.met == 2


def test_stat_provides_a_checksum_that_an_answer_lacks(as_google: FakeGcs, gcs: GcsStorage) -> None:
    as_google.hides_hashes = True
    as_google.faults.add(Fault("corrupt", "read", count=3), Fault("short", "read"))
    assert gcs.read("gs://data/a") == SMALL
    assert as_google.faults.met == 4
    assert as_google.requests["stat"] >= 4


@pytest.mark.parametrize("write", [write_small, write_large, replace], ids=lambda write: write.__name__)
@pytest.mark.parametrize("kind", ["empty", "html"])
def test_an_upload_that_never_ends_makes_no_object(
    as_google: FakeGcs, kind: str, write: Callable[[GcsStorage], Any]
) -> None:
    gcs = GcsStorage(RetryPolicy(first_wait=0.005, longest_wait=0.02, limit=0.1), part_bytes=PART)
    as_google.put("data", "a", SMALL)
    sent = ("part", "status") if write is write_large else ("upload",)
    as_google.faults.add(*(Fault(kind, operation, count=None) for operation in sent))
    before = dict(as_google.buckets["data"])
    with pytest.raises(
        StorageUnavailableError, match=r"gs://data/\S+ could not be written: no valid answer of the store"
    ):
        write(gcs)
    assert as_google.buckets["data"] == before


def test_only_parts_without_a_checksum_are_read_twice(as_google: FakeGcs, gcs: GcsStorage) -> None:
    # The first request gets a token.
    gcs.stat("gs://data/large")

    def reads(offset: int, length: int, *, is_checked: bool) -> int:
        counts = []
        # On a busy machine a late answer causes a retry.
        for _ in range(3):
            as_google.requests.clear()
            assert gcs.read_range("gs://data/large", offset, length, is_checked=is_checked) == LARGE[offset:][:length]
            counts.append(as_google.requests["read"])
        return min(counts)

    assert reads(7, 1000, is_checked=False) == reads(0, 1000, is_checked=False) == 2
    assert reads(7, 1000, is_checked=True) == reads(0, len(LARGE), is_checked=False) == 1


def test_a_404_counts_only_if_a_stat_agrees(as_google: FakeGcs, gcs: GcsStorage) -> None:
    as_google.faults.add(Fault("404", "read", count=2))
    assert gcs.read("gs://data/a") == SMALL
    with pytest.raises(StorageError, match="no such object"):
        gcs.read("gs://data/none")


PERMANENT = {
    "no such bucket": ("gs://none/in/x", r"no such object, or no bucket none \(404\)\. List the bucket with `gcloud storage ls"),
    "no permission": ("gs://secret/in/x", r"no permission \(403\)\. Grant the account roles/storage\.objectUser on bucket secret"),
    "no credentials": ("gs://data/in/x", r"(credentials are not valid|requires credentials) ?\(401\).*Run `gcloud auth"
    " application"),
}  # fmt: skip


@pytest.mark.parametrize("action", ["list", "read", "open", "create", "delete", "stat"])
@pytest.mark.parametrize("cause", PERMANENT)
def test_permanent_errors_end_at_once_and_say_what_to_do(
    as_google: FakeGcs, gcs: GcsStorage, action: str, cause: str
) -> None:
    path, words = PERMANENT[cause]
    if cause == "no such bucket" and action == "delete":
        # Deleting a missing object succeeds.
        gcs.delete(path)
        return
    as_google.bucket("secret")
    as_google.denied.add("secret")
    if cause == "no credentials":
        as_google.faults.add(Fault("401", "[!t]*", count=None))

    def act() -> None:
        if action == "create":
            with gcs.create(path) as file:
                file.write(b"x")
        else:
            getattr(gcs, action)(path)

    with pytest.raises(StorageError, match=words) as found:
        act()
    # Retries of a passing fault would say so.
    assert "until the time limit of retries" not in str(found.value)
    assert str(found.value).startswith(f"{path} could not be ")


def test_concurrent_writers_leave_one_whole_object(as_google: FakeGcs, gcs: GcsStorage) -> None:
    def write_both() -> None:
        with gcs.create("gs://data/new") as one:
            one.write(LARGE)
            with gcs.create("gs://data/new") as other:
                other.write(LARGE[::-1])

    with pytest.raises(
        StorageError, match=r"gs://data/new could not be written: another job wrote it meanwhile \(412\)"
    ):
        write_both()
    assert gcs.read("gs://data/new") == LARGE[::-1]
    with gcs.create("gs://data/same") as one, gcs.create("gs://data/same") as other:
        one.write(LARGE)
        other.write(LARGE)
    assert gcs.read("gs://data/same") == LARGE
    assert not as_google.uploads

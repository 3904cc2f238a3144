"""Google Cloud Storage, against a fake store on loopback.

Tests set how long it waits for a store that fails.
"""

from __future__ import annotations

import contextlib
import gzip
import itertools
import os
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import google_crc32c
import pytest
import urllib3

from scripts.fake_gcs import FakeGcs, Fault
from scripts.fake_gcs.objects import RejectedError
from tests.helpers.stores import serve_gs
from tpudata.errors import StorageError, StorageUnavailableError, UsageError
from tpudata.storage import Entry, Storage, expand, storage_for
from tpudata.storage.gcs import GcsStorage
from tpudata.storage.objects.retries import RetryPolicy


@pytest.fixture
def store() -> Iterator[FakeGcs]:
    with serve_gs(page=8) as server:
        yield server


@pytest.fixture
def gcs(store: FakeGcs) -> Storage:
    return GcsStorage()


def test_scan_requests_a_page_at_a_time(store: FakeGcs, gcs: Storage) -> None:
    for number in range(40):
        store.put("b", f"in/{number:02d}.jpg", bytes(number))
        store.put("b", f"in/{number:02d}/x", b"x")
    store.requests.clear()
    entries = gcs.scan("gs://b/in")
    assert next(entries).name == "00.jpg"
    assert store.requests["list"] == 1
    found = list(entries)
    assert [entry.name for entry in found[:3]] == ["00", "01.jpg", "01"]
    assert len(found) == 79
    assert store.requests["list"] > 4
    with pytest.raises(StorageError, match="there is no object below it"):
        next(gcs.scan("gs://b/none"))


def test_lists_objects_and_folders_over_many_pages(store: FakeGcs, gcs: Storage) -> None:
    for number in range(13):
        store.put("b", f"in/{number:02d}.jpg", bytes(number))
    store.put("b", "in/deep/er/a", b"a")
    store.put("b", "in/deep/b", b"bb")
    store.put("b", "inside", b"no")
    found = gcs.list("gs://b/in")
    assert [(entry.name, entry.size, entry.is_folder) for entry in found] == [
        *((f"{number:02d}.jpg", number, False) for number in range(13)),
        ("deep", 0, True),
    ]
    assert found[-1].path == "gs://b/in/deep"
    assert [entry.path for entry in gcs.list("gs://b/in/deep/")] == ["gs://b/in/deep/b", "gs://b/in/deep/er"]
    assert [entry.name for entry in gcs.list("gs://b")] == ["in", "inside"]


def test_lists_a_folder_on_two_pages_once(store: FakeGcs, gcs: Storage) -> None:
    store.repeats_folders = True
    for number in range(20):
        store.put("b", f"in/{number:02d}/a", b"a")
    assert [entry.name for entry in gcs.list("gs://b/in")] == [f"{number:02d}" for number in range(20)]


def test_recognizes_a_folder_marked_by_an_empty_object(store: FakeGcs, gcs: Storage) -> None:
    store.put("b", "in/", b"")
    assert gcs.list("gs://b/in") == []
    found = gcs.stat("gs://b/in")
    assert found is not None
    assert found.is_folder


def test_stat_distinguishes_objects_folders_and_missing_paths(store: FakeGcs, gcs: Storage) -> None:
    store.put("b", "in/a.jpg", b"abc")
    found = {path: gcs.stat(path) for path in ("gs://b/in/a.jpg", "gs://b/in", "gs://b", "gs://b/i")}
    sizes = {path: entry and (entry.path, entry.name, entry.size, entry.is_folder) for path, entry in found.items()}
    assert sizes == {
        "gs://b/in/a.jpg": ("gs://b/in/a.jpg", "a.jpg", 3, False),
        "gs://b/in": ("gs://b/in", "in", 0, True),
        "gs://b": ("gs://b", "", 0, True),
        "gs://b/i": None,
    }
    for path in ("gs://none/in", "gs://none"):
        with pytest.raises(StorageError, match=f"{path} could not be looked up: .*no bucket none"):
            gcs.stat(path)


def test_reads_objects_whole_and_in_parts(store: FakeGcs, gcs: Storage) -> None:
    data = os.urandom(20 << 20)
    store.put("b", "a/ä #?%.bin", data)
    path = gcs.join("gs://b/a", "ä #?%.bin")
    assert gcs.read(path) == data
    assert gcs.read_range(path, 7, 9) == data[7:16]
    assert gcs.read_range(path, len(data) - 2, 9) == data[-2:]
    assert gcs.read_range(path, len(data), 9) == b""
    assert gcs.read_range(path, 0, 0) == b""
    store.requests.clear()
    with gcs.open(path) as file:
        assert file.read(5) == data[:5]
        assert file.read() == data[5:]
        assert file.read() == b""
    assert store.requests["read"] <= 4


@pytest.mark.parametrize("data", [b"text " * 100_000, os.urandom(9 << 20), b""], ids=["text", "noise", "nothing"])
def test_rejects_an_object_with_a_content_encoding(store: FakeGcs, gcs: Storage, data: bytes) -> None:
    store.put("b", "a.csv", gzip.compress(data), encoding="gzip")
    message = r"gs://b/a\.csv could not be read: it is stored with Content-Encoding: gzip.*--clear-content-encoding"
    with pytest.raises(StorageError, match=message):
        gcs.read("gs://b/a.csv")
    for offset in (0, 7):
        with pytest.raises(StorageError, match=message):
            gcs.read_range("gs://b/a.csv", offset, 10)
    with gcs.open("gs://b/a.csv") as file, pytest.raises(StorageError, match=message):
        file.read(5)
    # What is gzip and says nothing of it is a file like any other.
    store.put("b", "a.gz", gzip.compress(data))
    assert gzip.decompress(gcs.read("gs://b/a.gz")) == data
    with gcs.open("gs://b/a.gz") as file:
        assert gzip.decompress(file.read()) == data


def test_reading_fails_if_the_object_is_replaced_meanwhile(store: FakeGcs, gcs: Storage) -> None:
    store.put("b", "a", b"old" * (4 << 20))
    with gcs.open("gs://b/a") as file:
        assert file.read(3) == b"old"
        store.put("b", "a", b"new" * (4 << 20))
        with pytest.raises(
            StorageError, match="gs://b/a could not be read: it was replaced or removed while it was read"
        ):
            file.read()


def test_an_object_appears_only_when_it_is_finished(store: FakeGcs, gcs: Storage) -> None:
    parts = [os.urandom(3 << 20) for _ in range(7)]
    with gcs.create("gs://b/out/a") as file:
        for part in parts:
            file.write(part)
        assert "out/a" not in store.buckets["b"]
    assert store.buckets["b"]["out/a"].data == b"".join(parts)
    with gcs.create("gs://b/out/a") as file:
        file.writelines([b"replaced", b" by this"])
    assert store.buckets["b"]["out/a"].data == b"replaced by this"
    with gcs.create("gs://b/out/empty"):
        pass
    assert store.buckets["b"]["out/empty"].data == b""


def test_failed_writes_leave_no_object(store: FakeGcs, gcs: Storage) -> None:
    def write() -> None:
        with gcs.create("gs://b/out/a") as file:
            file.write(bytes(20 << 20))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        write()
    assert "out/a" not in store.buckets["b"]
    assert not store.uploads


@pytest.mark.parametrize("same", [True, False])
def test_two_writers_of_one_object_do_not_mix(store: FakeGcs, gcs: Storage, same: bool) -> None:
    data = os.urandom(9 << 20)
    refused = contextlib.nullcontext() if same else pytest.raises(StorageError, match="another job wrote it meanwhile")
    with refused, gcs.create("gs://b/out/a") as file:
        file.write(data)
        other = store.put("b", "out/a", data if same else b"other")
    assert store.buckets["b"]["out/a"] is other


@pytest.mark.parametrize("size", [5, 20 << 20])
@pytest.mark.parametrize("same", [True, False])
def test_create_without_replace_keeps_an_existing_object(store: FakeGcs, gcs: Storage, same: bool, size: int) -> None:
    data = os.urandom(size)
    other = store.put("b", "out/a", data if same else data[::-1])
    refused = contextlib.nullcontext() if same else pytest.raises(StorageError, match="another job wrote it meanwhile")
    with refused, gcs.create("gs://b/out/a", replace=False) as file:
        for begin in range(0, size, 3 << 20):
            file.write(data[begin : begin + (3 << 20)])
    assert store.buckets["b"]["out/a"] is other
    # No part of it was sent.
    assert store.requests["part"] == 0
    with gcs.create("gs://b/out/new", replace=False) as file:
        file.write(data)
    assert store.buckets["b"]["out/new"].data == data


@pytest.mark.parametrize(
    ("size", "requests"), [(0, {"upload": 1}), (1 << 20, {"upload": 1}), ((1 << 20) + 1, {"upload": 1, "part": 1})]
)
def test_writes_a_small_object_in_one_request(
    store: FakeGcs, gcs: Storage, size: int, requests: dict[str, int]
) -> None:
    data = os.urandom(size)
    with gcs.create('gs://b/a "b"/\\', replace=False) as file:
        file.write(data)
    assert {name: count for name, count in store.requests.items() if count} == requests
    assert store.buckets["b"]['a "b"/\\'].data == data


@pytest.mark.parametrize(
    "kind", ["503", "reset", "lost", "truncated", "corrupt", "cut", "empty", "html", "unsaid", "short"]
)
def test_writes_a_small_object_despite_any_fault(store: FakeGcs, kind: str) -> None:
    gcs = GcsStorage(RetryPolicy(first_wait=0.001, longest_wait=0.001))
    data = os.urandom(3000)
    store.faults.add(Fault(kind, "upload", count=2))
    with gcs.create("gs://b/a") as file:
        file.write(data)
    assert store.buckets["b"]["a"].data == data
    assert store.faults.met == 2 or kind in ("lost", "unsaid", "truncated", "short")


def test_deletes_an_object_and_ignores_a_missing_one(store: FakeGcs, gcs: Storage) -> None:
    store.put("b", "a", b"")
    gcs.delete("gs://b/a")
    gcs.delete("gs://b/a")
    assert store.buckets["b"] == {}


def test_errors_name_the_object_the_cause_and_the_fix(store: FakeGcs, gcs: Storage) -> None:
    store.bucket("secret")
    store.denied.add("secret")
    with pytest.raises(StorageError, match=r"gs://b/a could not be read: no such object, or no bucket b \(404\)"):
        gcs.read("gs://b/a")
    with pytest.raises(StorageError, match="gs://b/a could not be listed: there is no object below it"):
        gcs.list("gs://b/a")
    with pytest.raises(StorageError, match="gs://none/a could not be listed: no such object, or no bucket none"):
        gcs.list("gs://none/a")
    for action in (gcs.read, gcs.list, gcs.stat, gcs.open):
        with pytest.raises(StorageError, match=r"no permission \(403\).*roles/storage.objectUser on bucket secret"):
            action("gs://secret/a")
    with pytest.raises(StorageError, match="gs://none/a could not be written"), gcs.create("gs://none/a") as file:
        file.write(b"a")
    with pytest.raises(StorageError, match="no bucket"):
        gcs.stat("gs:///a")
    with pytest.raises(StorageError, match="no object"):
        gcs.read("gs://b")


def test_checks_that_a_path_can_be_written(store: FakeGcs, gcs: Storage) -> None:
    store.put("b", "in/a", b"a")
    for path in ("gs://b", "gs://b/in", "gs://b/in/a", "gs://b/new/newer/"):
        gcs.check_writable(path)
    assert list(store.buckets["b"]) == ["in/a"]
    assert store.requests["abandon"] == 4
    store.faults.add(Fault("403", "upload", "b/out/*", count=None))
    with pytest.raises(StorageError, match=r"^gs://b/out could not be written: .*"):
        gcs.check_writable("gs://b/out")
    with pytest.raises(StorageError, match=r"^gs://none/out could not be written: .*"):
        gcs.check_writable("gs://none/out")


def test_expands_patterns_on_gs(store: FakeGcs) -> None:
    for name in ("in/cat/a.jpg", "in/cat/b.png", "in/dog/c.jpg"):
        store.put("b", name, b"x")
    assert [below for _, below in expand("gs://b/in/*/*.jpg")] == ["cat/a.jpg", "dog/c.jpg"]


@pytest.mark.parametrize("path", ["gs://b/in", "gs://b/in/"])
def test_recognizes_a_marked_folder_with_and_without_a_final_slash(store: FakeGcs, gcs: Storage, path: str) -> None:
    store.put("b", "in/", b"")
    store.put("b", "in/a", b"a")
    found = gcs.stat(path)
    assert found is not None
    assert (found.name, found.is_folder) == ("in", True)
    assert [entry.name for entry in gcs.list(path)] == ["a"]


@pytest.mark.parametrize(("folder", "name"), [("gs://b/in", "in//a"), ("gs://b/in", "in//"), ("gs://b", "/a")])
def test_rejects_names_with_an_empty_part(store: FakeGcs, gcs: Storage, folder: str, name: str) -> None:
    store.put("b", "in/b", b"")
    store.put("b", name, b"")
    with pytest.raises(
        StorageError, match=rf"{folder} could not be listed: .* empty part.*{folder}//.*gcloud storage mv"
    ):
        gcs.list(folder)
    with pytest.raises(StorageError, match="empty part"):
        list(expand("gs://b/**"))


ODD_NAMES = [
    "a b",
    "ä 三",
    "#1",
    "what?",
    "50%25",
    "a+b=c&d",
    "[x]*",
    ".hidden",
    "..",
    "a:b",
    '"',
    "'",
    "a\\b",
    "x" * 900,
]


@pytest.mark.parametrize("name", ODD_NAMES)
@pytest.mark.parametrize("data", [b"", b"data"], ids=["empty", "not empty"])
def test_reads_and_writes_objects_with_odd_names(store: FakeGcs, gcs: Storage, name: str, data: bytes) -> None:
    path = gcs.join("gs://b/deep er", name, name)
    with gcs.create(path) as file:
        file.write(data)
    assert store.buckets["b"].keys() == {f"deep er/{name}/{name}"}
    (folder,) = gcs.list("gs://b/deep er")
    assert (folder.name, folder.is_folder) == (name, True)
    due = Entry(path, name, len(data), False, google_crc32c.value(data))
    assert gcs.list(folder.path) == [due]
    assert gcs.stat(path) == due
    assert gcs.read(path) == gcs.read_range(path, 0, 100) == data
    with gcs.open(path) as file:
        assert file.read() == data
    gcs.delete(path)
    assert not store.buckets["b"]


@pytest.mark.parametrize("bucket", ["with.dots.example.com", "under_score", "a-1"])
def test_reads_and_writes_buckets_of_every_kind_of_name(store: FakeGcs, gcs: Storage, bucket: str) -> None:
    store.bucket(bucket)
    with gcs.create(f"gs://{bucket}/a/b") as file:
        file.write(b"data")
    assert [entry.path for entry in gcs.list(f"gs://{bucket}")] == [f"gs://{bucket}/a"]
    assert gcs.read(f"gs://{bucket}/a/b") == b"data"


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("gs://", "'gs://': no bucket \\(expected gs://BUCKET/OBJECT\\)"),
        ("gs:///a", "'gs:///a': no bucket"),
        ("gs://_a/a", "'gs://_a/a': no bucket"),
        ("gs:/b/a", "gs:/b/a: ambiguous path. Pass gs://b/a for Google Cloud Storage"),
        ("GS://b/a", "GS://b/a: no storage for GS://"),
    ],
)
def test_rejects_invalid_paths(store: FakeGcs, path: str, words: str) -> None:
    with pytest.raises(StorageError, match=words):
        storage_for(path).stat(path)


def test_lists_5000_objects_in_five_requests(store: FakeGcs, gcs: Storage) -> None:
    for number in range(5000):
        store.put("b", f"in/{number:05d}", bytes(number % 3))
    store.page = 1000
    assert [(entry.name, entry.size) for entry in gcs.list("gs://b/in")] == [
        (f"{number:05d}", number % 3) for number in range(5000)
    ]
    assert store.requests["list"] == 5
    # Google's client would ask for the bucket as well, which objectViewer may not.
    assert store.requests["bucket"] == 0


@pytest.mark.parametrize("megabytes", [1, 20])
def test_detects_a_changed_bit_in_a_whole_read(store: FakeGcs, megabytes: int) -> None:
    store.put("b", "a", os.urandom(megabytes << 20))
    store.faults.add(Fault("corrupt", "read"))
    with GcsStorage(RetryPolicy(first_wait=0.01)).open("gs://b/a") as file:
        if megabytes == 1:
            # It came whole, so that it is asked for again.
            assert file.read() == store.buckets["b"]["a"].data
            return
        with pytest.raises(
            StorageError, match=r"gs://b/a could not be read: .*not match the store's checksum\. Run again"
        ):
            file.read()


@pytest.mark.parametrize("action", ["list", "read", "stat", "delete"])
def test_logs_a_long_wait_at_intervals(store: FakeGcs, caplog: pytest.LogCaptureFixture, action: str) -> None:
    store.put("b", "in/a", b"a")
    store.faults.add(Fault("503", "*", count=None))
    began = time.monotonic()
    gcs = GcsStorage(RetryPolicy(first_wait=0.01, longest_wait=0.02, limit=0.25, warn_after=0.05))
    with pytest.raises(StorageUnavailableError, match=r"the store answered 503 .*until the time limit of retries"):
        getattr(gcs, action)("gs://b/in/a")
    took = time.monotonic() - began
    said = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    # One in 0.05 s, and on a busy machine the last try comes after the limit.
    assert 1 <= len(said) <= took / 0.05
    assert "Google Cloud Storage: an answer 503, for " in said[0]
    assert said[0].endswith("trying again, for 0.25 s in all.")


def test_passes_on_the_message_of_the_store_in_one_line(store: FakeGcs) -> None:
    store.denied.add("b")
    with pytest.raises(
        StorageUnavailableError,
        match=r"objectViewer to read only\. The store says: the account does not have .* to b\.$",
    ):
        GcsStorage().read("gs://b/a")


def test_shortens_a_long_message_and_removes_upload_ids(store: FakeGcs, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "GET https://x/y?upload_id=1 <html>\n\n<b>busy</b> " + "la " * 999
    monkeypatch.setattr("scripts.fake_gcs.api._answer_content", _reject(text))
    store.put("b", "a", b"a")
    with pytest.raises(StorageUnavailableError) as found:
        GcsStorage(RetryPolicy(limit=0.01)).read("gs://b/a")
    words = str(found.value)
    assert words.startswith(
        "gs://b/a could not be read: the store answered 503 (GET https://x/y <html> <b>busy</b> la la"
    )
    assert len(words) < 550


def _reject(message: str) -> Any:
    def reject(*_: Any) -> Any:
        raise RejectedError(503, message)

    return reject


def test_disables_nagle_on_connections_through_a_proxy(store: FakeGcs, monkeypatch: pytest.MonkeyPatch) -> None:
    # Otherwise each part waits until the proxy's machine acknowledges the head, 40 ms.
    asked = []

    def connect(*arguments: Any, **given: Any) -> Any:
        asked.append(given["socket_options"])
        raise ConnectionRefusedError

    monkeypatch.setattr(urllib3.util.connection, "create_connection", connect)
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", "https://storage.test")
    with pytest.raises(StorageUnavailableError):
        GcsStorage(RetryPolicy(limit=0.01)).read("gs://b/a")
    assert (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1) in asked[0]


def test_swaps_only_if_the_content_is_as_expected(store: FakeGcs, gcs: Storage) -> None:
    path = "gs://b/new/file"
    assert not gcs.swap(path, b"one", b"two")
    assert gcs.swap(path, None, b"one")
    assert not gcs.swap(path, None, b"two")
    assert not gcs.swap(path, b"other", b"two")
    assert gcs.swap(path, b"one", b"two")
    assert not gcs.swap(path, b"one", None)
    assert store.buckets["b"]["new/file"].data == b"two"
    assert gcs.swap(path, b"two", None)
    assert gcs.swap(path, None, None)
    assert not store.buckets["b"]


def test_only_one_of_many_concurrent_swaps_succeeds(store: FakeGcs, gcs: Storage) -> None:
    store.latency = 0.01
    standing: bytes | None = None
    with ThreadPoolExecutor(8) as pool:
        for turn in range(4):
            news = [f"{turn} {number}".encode() for number in range(8)]
            done = list(pool.map(gcs.swap, ["gs://b/file"] * 8, [standing] * 8, news))
            assert done.count(True) == 1
            standing = news[done.index(True)]
            assert store.buckets["b"]["file"].data == standing


@pytest.mark.parametrize(
    ("kind", "passing", "operation"),
    [
        # To a swap, a connection that is reset before anything is done is an answer 503.
        pytest.param(*case, marks=pytest.mark.matrix if case[0] == "reset" or case[1] == 1 else ())
        for case in itertools.product(
            ("503", "reset", "lost", "truncated", "corrupt", "cut"),
            range(3),
            ("stat", "read", "upload", "part", "delete"),
        )
    ],
)
def test_swaps_once_despite_any_fault(store: FakeGcs, kind: str, passing: int, operation: str) -> None:
    gcs = GcsStorage(RetryPolicy(first_wait=0.001, longest_wait=0.001))
    store.faults.add(Fault(kind, operation, passing=passing))
    contents = [None, b"one", b"two", b"three", None]
    for old, new in itertools.pairwise(contents):
        assert gcs.swap("gs://b/file", old, new)
        found = store.buckets["b"].get("file")
        assert (found and found.data) == new


def test_environment_variable_sets_the_retries(store: FakeGcs, monkeypatch: pytest.MonkeyPatch) -> None:
    store.faults.add(Fault("html", "read", count=None))
    monkeypatch.setenv("TPUDATA_GCS_RETRY", "first_wait=0.01, longest_wait=0.05,limit=0.2")
    began = time.monotonic()
    with pytest.raises(StorageUnavailableError, match="until the time limit of retries"):
        storage_for("gs://b/a").read("gs://b/a")
    # Without the variable it is 180 s.
    assert time.monotonic() - began < 60


@pytest.mark.parametrize("text", ["limit", "limit=x", "limit=-1", "limit=nan", "patience=3"])
def test_rejects_invalid_retry_settings(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("TPUDATA_GCS_RETRY", f"first_wait=1,{text}")
    with pytest.raises(UsageError, match=rf"TPUDATA_GCS_RETRY: unknown setting \(got '{text}'"):
        GcsStorage()

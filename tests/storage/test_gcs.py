"""Google Cloud Storage, against a small store on loopback."""

from __future__ import annotations

import contextlib
import gzip
import os
from collections.abc import Iterator

import pytest

from tests.fake_gcs import FakeGcs
from tpudata.errors import StorageError
from tpudata.storage import Storage, expand
from tpudata.storage.gcs import GcsStorage


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeGcs]:
    with FakeGcs() as server:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
        server.bucket("b")
        yield server


@pytest.fixture
def gcs(store: FakeGcs) -> Storage:
    return GcsStorage()


def test_a_folder_lists_its_objects_and_folders_over_many_pages(store: FakeGcs, gcs: Storage) -> None:
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


def test_a_folder_may_be_marked_by_an_empty_object(store: FakeGcs, gcs: Storage) -> None:
    store.put("b", "in/", b"")
    assert gcs.list("gs://b/in") == []
    found = gcs.stat("gs://b/in")
    assert found is not None
    assert found.is_folder


def test_stat_tells_objects_folders_and_nothing_apart(store: FakeGcs, gcs: Storage) -> None:
    store.put("b", "in/a.jpg", b"abc")
    found = {
        path: gcs.stat(path)
        for path in ("gs://b/in/a.jpg", "gs://b/in", "gs://b", "gs://b/i", "gs://none/in", "gs://none")
    }
    sizes = {path: entry and (entry.path, entry.name, entry.size, entry.is_folder) for path, entry in found.items()}
    assert sizes == {
        "gs://b/in/a.jpg": ("gs://b/in/a.jpg", "a.jpg", 3, False),
        "gs://b/in": ("gs://b/in", "in", 0, True),
        "gs://b": ("gs://b", "", 0, True),
        "gs://b/i": None,
        "gs://none/in": None,
        "gs://none": None,
    }


def test_reading_whole_and_in_parts(store: FakeGcs, gcs: Storage) -> None:
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
def test_an_object_stored_with_an_encoding_is_refused(store: FakeGcs, gcs: Storage, data: bytes) -> None:
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


def test_an_open_object_stays_what_it_was(store: FakeGcs, gcs: Storage) -> None:
    store.put("b", "a", b"old" * (4 << 20))
    with gcs.open("gs://b/a") as file:
        assert file.read(3) == b"old"
        store.put("b", "a", b"new" * (4 << 20))
        with pytest.raises(StorageError, match="gs://b/a could not be read: it is not there"):
            file.read()


def test_an_object_appears_whole_when_it_is_finished(store: FakeGcs, gcs: Storage) -> None:
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


def test_nothing_appears_where_writing_fails(store: FakeGcs, gcs: Storage) -> None:
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
    refused = (
        contextlib.nullcontext() if same else pytest.raises(StorageError, match="somebody else wrote it meanwhile")
    )
    with refused, gcs.create("gs://b/out/a") as file:
        file.write(data)
        other = store.put("b", "out/a", data if same else b"other")
    assert store.buckets["b"]["out/a"] is other


def test_deleting(store: FakeGcs, gcs: Storage) -> None:
    store.put("b", "a", b"")
    gcs.delete("gs://b/a")
    gcs.delete("gs://b/a")
    assert store.buckets["b"] == {}


def test_errors_name_the_object_the_cause_and_the_mend(store: FakeGcs, gcs: Storage) -> None:
    store.bucket("secret")
    store.denied.add("secret")
    with pytest.raises(StorageError, match=r"gs://b/a could not be read: it is not there \(404\), or bucket b is not"):
        gcs.read("gs://b/a")
    with pytest.raises(StorageError, match="gs://b/a could not be listed: there is no object below it"):
        gcs.list("gs://b/a")
    with pytest.raises(StorageError, match="gs://none/a could not be listed: it is not there"):
        gcs.list("gs://none/a")
    for action in (gcs.read, gcs.list, gcs.stat, gcs.open):
        with pytest.raises(StorageError, match=r"no permission \(403\).*roles/storage.objectUser on bucket secret"):
            action("gs://secret/a")
    with pytest.raises(StorageError, match="gs://none/a could not be written"), gcs.create("gs://none/a") as file:
        file.write(b"a")
    with pytest.raises(StorageError, match="names no bucket"):
        gcs.stat("gs:///a")
    with pytest.raises(StorageError, match="names no object"):
        gcs.read("gs://b")


def test_patterns_expand_on_it(store: FakeGcs) -> None:
    for name in ("in/cat/a.jpg", "in/cat/b.png", "in/dog/c.jpg"):
        store.put("b", name, b"x")
    assert [below for _, below in expand("gs://b/in/*/*.jpg")] == ["cat/a.jpg", "dog/c.jpg"]

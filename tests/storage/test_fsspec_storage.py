"""Stores of fsspec's: S3 by s3fs against moto on loopback, and fsspec's own store in memory."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import boto3
import fsspec
import pytest
from moto.server import ThreadedMotoServer

from beam_jobs import images
from tests.helpers.pictures import digests, make_pictures
from tpudata import RecordSource
from tpudata.cli import main
from tpudata.errors import StorageError, StorageUnavailableError
from tpudata.storage import Entry, RequestLimits, expand, held_request_limits, storage_for


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    """A bucket of S3's, s3://NAME; credentials and the endpoint are in the environment, as people set them."""
    with pytest.MonkeyPatch.context() as environment:
        server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
        server.start()
        host, port = server.get_host_and_port()
        for name, value in {
            "AWS_ACCESS_KEY_ID": "user",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        }.items():
            environment.setenv(name, value)
        boto3.client("s3").create_bucket(Bucket="bucket")
        yield "s3://bucket"
        server.stop()


@pytest.fixture(params=["s3", "memory"])
def folder(request: pytest.FixtureRequest) -> str:
    root = request.getfixturevalue("s3") if request.param == "s3" else "memory://disk"
    return f"{root}/{uuid.uuid4().hex}"


def write(path: str, data: bytes, *, replace: bool = True) -> None:
    with storage_for(path).create(path, replace=replace) as file:
        file.write(data)


def write_in_part(path: str, data: bytes) -> None:
    with storage_for(path).create(path) as file:
        file.write(data)
        raise ZeroDivisionError


def test_writes_reads_and_lists_files(folder: str) -> None:
    storage = storage_for(folder)
    path = storage.join(folder, "a", "b.bin")
    write(path, b"0123456789")
    assert storage.read(path) == storage.read(path, 10) == storage.read(path, 3) == b"0123456789"
    assert storage.read_range(path, 3, 4) == b"3456"
    assert storage.read_range(path, 8, 10, is_checked=True) == b"89"
    assert (storage.read_range(path, 20, 10), storage.read_range(path, 2, 0)) == (b"", b"")
    with storage.open(path) as file:
        assert (file.read(4), file.read()) == (b"0123", b"456789")
    write(f"{folder}/c", b"x")
    assert [tuple(entry[:4]) for entry in storage.list(folder)] == [
        (f"{folder}/a", "a", 0, True),
        (f"{folder}/c", "c", 1, False),
    ]
    assert storage.stat(path) == Entry(path, "b.bin", 10, False)
    assert storage.stat(f"{folder}/none") is None
    assert [below for _, below in expand(f"{folder}/*/*.bin")] == ["a/b.bin"]


def test_distinguishes_an_empty_folder_from_a_missing_one() -> None:
    folder = f"memory://disk/{uuid.uuid4().hex}"
    with pytest.raises(StorageError, match="could not be listed"):
        storage_for(folder).list(folder)
    fsspec.filesystem("memory").mkdir(folder)
    assert storage_for(folder).list(folder) == list(storage_for(folder).scan(folder)) == []


def test_a_file_appears_whole_or_not_at_all(folder: str) -> None:
    path = f"{folder}/whole/file"
    storage = storage_for(path)
    with pytest.raises(ZeroDivisionError):
        write_in_part(path, bytes(20 << 20))
    assert storage.stat(path) is None
    write(path, b"old")
    with pytest.raises(ZeroDivisionError):
        write_in_part(path, b"new")
    assert storage.read(path) == b"old"
    # Another attempt at the same work finds its bytes there; other bytes are an error.
    write(path, b"old", replace=False)
    for data in (b"new", b"olds", b"ol", b""):
        with pytest.raises(StorageError, match=r"could not be written: it exists already, with different bytes"):
            write(path, data, replace=False)
    assert storage.read(path) == b"old"
    write(f"{folder}/whole/other", b"first", replace=False)
    assert storage.read(f"{folder}/whole/other") == b"first"
    assert [entry.name for entry in storage.list(f"{folder}/whole")] == ["file", "other"]
    storage.delete(path)
    storage.delete(path)
    assert storage.stat(path) is None


def test_swaps_are_exclusive(folder: str) -> None:
    path = f"{folder}/claim"
    storage = storage_for(path)
    with ThreadPoolExecutor(4) as pool:
        taken = list(pool.map(lambda number: storage.swap(path, None, b"%d" % number), range(4)))
    assert any(taken)
    if path.startswith("s3://"):
        assert taken.count(True) == 1
        assert storage.read(path) == b"%d" % taken.index(True)
    owner = storage.read(path)
    assert not storage.swap(path, b"another", b"x")
    assert storage.swap(path, owner, b"next")
    assert storage.swap(path, b"next", None)
    assert storage.swap(path, None, None)


def test_errors_name_path_and_cause(s3: str) -> None:
    storage = storage_for(s3)
    with pytest.raises(StorageError, match=rf"^{s3}/none could not be read: FileNotFoundError"):
        storage.read(f"{s3}/none")
    with pytest.raises(StorageError, match=rf"^{s3}/none could not be listed"):
        storage.list(f"{s3}/none")
    with pytest.raises(StorageError, match=r"^nonsense://a: no storage for nonsense://"):
        storage_for("nonsense://a")


def test_reports_an_outage_as_unavailable(s3: str, monkeypatch: pytest.MonkeyPatch) -> None:
    write(f"{s3}/there", b"1")
    files, _ = fsspec.url_to_fs(s3, use_listings_cache=False)
    monkeypatch.setattr(files, "cat_file", _fails)
    with pytest.raises(StorageUnavailableError, match=r"there could not be read: OSError: reset"):
        storage_for(s3).read(f"{s3}/there")


def test_retries_truncated_reads(s3: str, monkeypatch: pytest.MonkeyPatch) -> None:
    write(f"{s3}/cut", b"0123456789")
    files, _ = fsspec.url_to_fs(s3, use_listings_cache=False)
    read, calls = files.cat_file, []

    def cut(path: str, **span: int) -> bytes:
        calls.append(span)
        return bytes(read(path, **span)[: 3 if len(calls) == 1 else None])

    monkeypatch.setattr(files, "cat_file", cut)
    assert storage_for(s3).read(f"{s3}/cut") == b"0123456789"
    calls.clear()
    assert storage_for(s3).read_range(f"{s3}/cut", 2, 6, is_checked=True) == b"234567"
    assert len(calls) == 2
    calls.clear()
    with storage_for(s3).open(f"{s3}/cut") as file:
        assert file.read() == b"0123456789"
    monkeypatch.setattr(files, "cat_file", lambda _: b"012")
    with (
        held_request_limits(RequestLimits(retry_seconds=0.05)),
        pytest.raises(StorageUnavailableError, match="cut could not be read: received 3 bytes of an object of 10"),
    ):
        storage_for(s3).read(f"{s3}/cut")


def _fails(*_arguments: object, **_named: object) -> bytes:
    raise OSError("reset")


def test_converts_to_s3_with_the_same_shards_as_to_disk(
    s3: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_pictures(tmp_path / "in", 6)
    for path in sorted((tmp_path / "in").rglob("*.*")):
        write(f"{s3}/in/{path.relative_to(tmp_path / 'in')}", path.read_bytes())
    flags = ["--num-shards=2"]
    assert images.run([f"--input={s3}/in", f"--output={s3}/out", *flags]) == 0
    assert images.run([f"--input={tmp_path}/in", f"--output={tmp_path}/out", *flags]) == 0
    here, there = digests(tmp_path / "out"), {}
    for name in here:
        there[name] = storage_for(s3).read(f"{s3}/out/{name}")
    shards = [name for name in here if name.endswith(".tfrecord")]
    assert len(shards) == 2
    assert all((tmp_path / "out" / name).read_bytes() == there[name] for name in shards)
    assert main(["verify", f"{s3}/out"]) == 0
    assert main(["inspect", f"{s3}/out"]) == 0
    assert re.search(r"^train +6 +2 ", capsys.readouterr().out, re.MULTILINE)
    assert len(RecordSource(f"{s3}/out", "train")) == 6


def test_treats_file_urls_as_local_paths(tmp_path: Path) -> None:
    make_pictures(tmp_path / "a b#c", 4)
    url = f"file://{tmp_path}/a%20b%23c"
    assert images.run([f"--input={url}", f"--output=file://{tmp_path}/out"]) == 0
    assert main(["verify", f"file://localhost{tmp_path}/out"]) == 0
    assert len(RecordSource(f"file://{tmp_path}/out", "train")) == 4
    with pytest.raises(StorageError, match=r"file://: a URL without a path \(expected file:///PATH\)"):
        storage_for("file://").read("file://")
    with pytest.raises(StorageError, match=r"a file on another machine \(expected file:///PATH\)"):
        storage_for("file://host/a").read("file://host/a")

"""The store of these tests compared with the independent fake-gcs-server: the same requests get the same answers.

scripts/test_gcs builds fake-gcs-server and names it in FAKE_GCS_SERVER. All go to the same hosts; the store passes them on.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from google.api_core import exceptions as api
from google.cloud import storage

from scripts.fake_gcs import FakeGcs
from tests.gcs import test_faults as operations
from tests.gcs.child import Child, digest, noise
from tests.gcs.test_clients import CONVERSIONS, done, pictures
from tpudata.storage.gcs import GcsStorage
from tpudata.storage.gcs.upload import PART_BYTES

__all__ = ["pictures"]
STORES = ["ours", pytest.param("fake-gcs-server", marks=pytest.mark.matrix)]
# The fast part of test_clients.py does the same with our store.
BOTH_WHOLE = [pytest.param(store, marks=pytest.mark.matrix) for store in ("ours", "fake-gcs-server")]
SIZE = 700_000


@pytest.fixture(scope="module")
def other() -> Iterator[str]:
    """HOST:PORT of fake-gcs-server."""
    command = os.environ.get("FAKE_GCS_SERVER")
    if not command:
        pytest.skip("FAKE_GCS_SERVER names no server; scripts/test_gcs builds it")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    argv = [command, "-scheme=http", "-backend=memory", "-host=127.0.0.1", f"-port={port}", "-log-level=error"]
    with subprocess.Popen(
        [*argv, "-external-url=https://storage.googleapis.com"], stderr=subprocess.DEVNULL
    ) as process:
        try:
            while True:
                assert process.poll() is None, f"{command} ended with {process.returncode}"
                with contextlib.suppress(OSError):
                    socket.create_connection(("127.0.0.1", port)).close()
                    break
                time.sleep(0.1)
            yield f"127.0.0.1:{port}"
        finally:
            process.kill()


@pytest.fixture
def bucket(request: pytest.FixtureRequest, as_google: FakeGcs) -> Iterator[storage.Bucket]:
    """An empty bucket of the requested store, by Google's client."""
    as_google.needs_token = False
    as_google.buckets.clear()
    if request.param != "ours":
        as_google.forward = request.getfixturevalue("other")
    try:
        client = storage.Client(project="test")
        made = client.create_bucket("data")
        yield made
        made.delete(force=True)
    finally:
        as_google.forward = None


@pytest.mark.parametrize("bucket", STORES, indirect=True)
@pytest.mark.parametrize("operation", operations.OPERATIONS)
def test_our_storage_works_on_both_stores(bucket: storage.Bucket, operation: Callable[[GcsStorage], Any]) -> None:
    small, large = operations.SMALL, operations.LARGE
    for name, data in {"a": small, "in/x": small, "in/y": small, "in/z/1": small, "large": large}.items():
        bucket.blob(name).upload_from_string(data)
    due: dict[Callable[[GcsStorage], Any], Any] = {
        operations.listed: [("x", 1000), ("y", 1000), ("z", 0)],
        operations.read: large,
        operations.read_part: (large[1000:301_000], b""),
        operations.read_on: (large[:5], large[5:]),
        operations.write_small: small,
        operations.write_large: large,
        operations.replace: b"another",
        operations.delete: None,
    }
    gcs = GcsStorage(operations.RETRY_POLICY, part_bytes=PART_BYTES // 8)
    found = operation(gcs)
    if operation is operations.looked_up:
        found = [entry and (entry.name, entry.size, entry.is_folder) for entry in found]
        assert found == [("a", 1000, False), ("in", 0, True), None]
    else:
        assert found == due[operation]
    # As Google's client sees it.
    for name, data in {"new/small": small, "new/large": large}.items():
        blob = bucket.get_blob(name)
        assert blob is None or blob.download_as_bytes() == data


@pytest.mark.parametrize("bucket", STORES, indirect=True)
def test_preconditions_reject_other_generations(bucket: storage.Bucket) -> None:
    blob = bucket.blob("a")
    blob.upload_from_string(b"one", if_generation_match=0)
    first = blob.generation
    with pytest.raises(api.PreconditionFailed):
        bucket.blob("a").upload_from_string(b"two", if_generation_match=0)
    with pytest.raises(api.PreconditionFailed):
        bucket.blob("a").upload_from_string(b"two", if_generation_match=first - 1)
    bucket.blob("a").upload_from_string(b"two", if_generation_match=first)
    assert bucket.get_blob("a").generation > first
    assert bucket.blob("a").download_as_bytes() == b"two"


@pytest.mark.parametrize("bucket", STORES, indirect=True)
def test_a_resumable_upload_appears_only_when_complete(bucket: storage.Bucket) -> None:
    data = noise(SIZE, 3)
    with bucket.blob("big").open("wb", chunk_size=256 << 10, ignore_flush=True) as file:
        file.write(data[:300_000])
        assert bucket.get_blob("big") is None
        file.write(data[300_000:])
    assert bucket.blob("big").download_as_bytes(checksum="crc32c") == data


@pytest.mark.parametrize("bucket", STORES, indirect=True)
def test_lists_by_prefix_and_delimiter(bucket: storage.Bucket) -> None:
    for name in ("a", "in/b/1", "in/b/2", "in/c", "in/d/", "inside"):
        bucket.blob(name).upload_from_string(b"")
    found = bucket.list_blobs(prefix="in/", delimiter="/")
    assert ([blob.name for blob in found], found.prefixes) == (["in/c"], {"in/b/", "in/d/"})
    assert [blob.name for blob in bucket.list_blobs(prefix="in/b")] == ["in/b/1", "in/b/2"]
    with pytest.raises(api.NotFound):
        list(bucket.client.list_blobs("none"))


@pytest.mark.parametrize("bucket", STORES, indirect=True)
def test_copies_rewrites_and_composes_objects(bucket: storage.Bucket) -> None:
    one, two = bucket.blob("one"), bucket.blob("two")
    one.upload_from_string(b"one ")
    two.upload_from_string(b"two")
    assert bucket.copy_blob(one, bucket, "copy").download_as_bytes() == b"one "
    moved = bucket.blob("moved")
    assert moved.rewrite(two)[1:] == (3, 3)
    whole = bucket.blob("whole")
    whole.compose([one, two])
    assert whole.download_as_bytes() == b"one two"


@pytest.mark.parametrize("bucket", BOTH_WHOLE, indirect=True)
def test_tensorflow_works_on_both_stores(bucket: storage.Bucket, child: Child) -> None:
    child("tf_write", "gs://data/d/x", SIZE, 7)
    assert bucket.blob("d/x").download_as_bytes() == noise(SIZE, 7)
    assert child("tf_read", "gs://data/d/x") == digest(noise(SIZE, 7))
    child("tf_rename", "gs://data/d/x", "gs://data/d/y")
    assert child("tf_list", "gs://data/d") == ["y"]
    child("tf_remove", "gs://data/d/y")
    assert bucket.get_blob("d/y") is None
    assert child("tf_checkpoint", "gs://data/model/c-1", SIZE, 8) == digest(noise(4 * SIZE, 8))


@pytest.mark.parametrize("bucket", BOTH_WHOLE, indirect=True)
@pytest.mark.parametrize("what", CONVERSIONS)
def test_conversion_and_training_work_on_both_stores(
    bucket: storage.Bucket, child: Child, pictures: dict[str, bytes], what: str
) -> None:
    for name, data in pictures.items():
        bucket.blob(name).upload_from_string(data)
    done(child, *CONVERSIONS[what], "--output", "gs://data/out")
    before = {blob.name: blob.crc32c for blob in bucket.list_blobs(prefix="out/")}
    shard = min(name for name in before if name.endswith(".tfrecord"))
    for name in ("out/manifest.json", shard):
        bucket.blob(name).delete()
    done(child, *CONVERSIONS[what], "--output", "gs://data/out", "--resume")
    assert {blob.name: blob.crc32c for blob in bucket.list_blobs(prefix="out/")} == before
    assert "no defects" in done(child, "verify", "gs://data/out")
    if what == "images":
        train = ["train", "--model", "mnist_cnn", "--data", "gs://data/out", "--model-dir", "gs://data/model"]
        done(child, *train, "--batch-size", "16", "--train-steps", "2")
        assert bucket.get_blob("model/evaluation.json") is not None

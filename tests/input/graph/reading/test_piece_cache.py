"""Pieces of a split cached on a local disk: the files kept there, and unchanged batches."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import tensorflow as tf

from tests.helpers.datasets import write_dataset
from tpudata import Reading, UsageError, make_input_fn
from tpudata.format import Feature

RECORDS, BATCH = 3000, 48
READING = Reading(pieces=True, piece_bytes=16 * 31, lanes=8, streams=12)
# Pieces of 13 records of 31 bytes; the last one of a shard of 600 records has 15 more.
PIECES = 5 * 45


def write(folder: Path, **options: Any) -> str:
    """Write numbered records into 5 shards of unlike sizes."""
    records = [{"x": bytes(divmod(number, 256))} for number in range(RECORDS)]
    features = [Feature("x", "bytes", "uint8", (2,), "raw")]
    return write_dataset(str(folder), {"train": records}, features, layout="", shards=5, **options)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write(tmp_path_factory.mktemp("plain"))


def feed(data: str, steps: int, *, training: bool = True, host: int = 0, hosts: int = 1, **options: Any) -> Any:
    """Return the numbers of the records that a host feeds in some steps, [steps, rows]."""
    options = {"seed": 4, "shuffle": 96, "reading": READING, **options} if training else {"reading": READING, **options}
    input_fn = make_input_fn(data, "train", training=training, **options)
    batches = input_fn({"batch_size": BATCH}, host_index=host, host_count=hosts).take(steps)
    found: npt.NDArray[np.int64] = np.stack([batch["x"] for batch in batches.as_numpy_iterator()]).astype(np.int64)
    return found[..., 0] * 256 + found[..., 1]


def kept(cache: Path) -> list[Path]:
    """Return the files of whole pieces."""
    return sorted(cache.glob("*/*.index"))


EPOCH = -(-RECORDS // BATCH)


def test_the_first_epoch_stores_each_piece(dataset: str, tmp_path: Path) -> None:
    expected = feed(dataset, 2 * EPOCH)
    np.testing.assert_array_equal(feed(dataset, 5, cache=tmp_path), expected[:5])
    assert 4 <= len(kept(tmp_path)) < PIECES
    np.testing.assert_array_equal(feed(dataset, 2 * EPOCH, cache=tmp_path), expected)
    assert len(kept(tmp_path)) == PIECES
    assert not list(tmp_path.glob("*/*.tempstate*"))


def test_reads_records_from_stored_pieces(tmp_path: Path) -> None:
    data, cache = write(tmp_path / "data"), tmp_path / "cache"
    expected = feed(data, 2 * EPOCH, cache=cache)
    # The shards' bytes are not read any more.
    for shard in Path(data).glob("*.tfrecord"):
        shard.write_bytes(bytes(shard.stat().st_size))
    np.testing.assert_array_equal(feed(data, 2 * EPOCH, cache=cache), expected)
    with pytest.raises(tf.errors.DataLossError):
        feed(data, 1)


@pytest.mark.cases(1)
@pytest.mark.parametrize("hosts", [2, 4])
def test_each_host_stores_only_its_pieces(dataset: str, tmp_path: Path, hosts: int) -> None:
    expected = feed(dataset, 3 * EPOCH)
    kept_by: list[set[str]] = []
    for host in range(hosts):
        cache = tmp_path / str(host)
        rows = slice(host * BATCH // hosts, (host + 1) * BATCH // hosts)
        found = feed(dataset, 3 * EPOCH, host=host, hosts=hosts, cache=cache)
        np.testing.assert_array_equal(found, expected[:, rows])
        kept_by.append({path.name for path in kept(cache)})
    assert sum(map(len, kept_by)) == len(set().union(*kept_by)) == PIECES


def test_evaluation_and_a_filter_use_the_cache(dataset: str, tmp_path: Path) -> None:
    expected = feed(dataset, EPOCH, training=False)
    np.testing.assert_array_equal(feed(dataset, EPOCH, training=False, cache=tmp_path), expected)
    part = feed(dataset, EPOCH, training=False, host=1, hosts=3, cache=tmp_path)
    np.testing.assert_array_equal(part, expected[:, BATCH // 3 : 2 * BATCH // 3])

    def is_chosen(record: dict[str, tf.Tensor]) -> tf.Tensor:
        return tf.io.decode_raw(record["x"], tf.uint8)[1] % 3 == 0

    chosen = feed(dataset, 20, training=False, cache=tmp_path, filter=is_chosen)
    assert chosen.ravel().tolist() == [number for number in range(RECORDS) if number % 256 % 3 == 0][: chosen.size]
    in_order = feed(dataset, EPOCH, cache=tmp_path, shuffle=False)
    np.testing.assert_array_equal(in_order.ravel()[:RECORDS], np.arange(RECORDS))


def test_caches_pieces_of_compressed_shards(tmp_path: Path) -> None:
    data = write(tmp_path / "data", compression="gzip")
    reading = Reading(pieces=True, piece_bytes=800, lanes=2)
    expected = feed(data, 2 * EPOCH, reading=reading)
    for _ in range(2):
        found = feed(data, 2 * EPOCH, reading=reading, cache=tmp_path / "cache")
        np.testing.assert_array_equal(found, expected)


def test_accepts_any_folder_name(dataset: str, tmp_path: Path) -> None:
    cache = tmp_path / "a b #c %d {é}] ~$x"
    expected = feed(dataset, EPOCH, cache=cache)
    stamps = {path: path.stat().st_mtime_ns for path in kept(cache)}
    assert stamps
    np.testing.assert_array_equal(feed(dataset, EPOCH, cache=cache), expected)
    # They were reused: no file was rewritten.
    assert {path: path.stat().st_mtime_ns for path in stamps} == stamps


@pytest.mark.parametrize("letter", ["*", "?", "[", "\\"])
def test_rejects_a_folder_name_that_is_a_pattern(dataset: str, tmp_path: Path, letter: str) -> None:
    with pytest.raises(UsageError, match="in a name as a pattern"):
        feed(dataset, 1, cache=tmp_path / f"a{letter}b")


def test_rereads_damaged_pieces_from_the_shards(dataset: str, tmp_path: Path) -> None:
    expected = feed(dataset, EPOCH, cache=tmp_path)
    for number, index in enumerate(kept(tmp_path)):
        data = index.with_name(f"{index.stem}.data-00000-of-00001")
        content = data.read_bytes()
        if number % 3 == 0:
            data.write_bytes(content[:-3] + bytes([content[-3] ^ 1]) + content[-2:])
        elif number % 3 == 1:
            data.write_bytes(content[:-3])
        else:
            data.unlink()
    np.testing.assert_array_equal(feed(dataset, EPOCH, cache=tmp_path), expected)
    for shard in Path(dataset).glob("*.tfrecord"):
        assert shard.stat().st_size
    # They were written again.
    for index in kept(tmp_path):
        assert index.with_name(f"{index.stem}.data-00000-of-00001").stat().st_size


def test_removes_files_of_a_killed_process(dataset: str, tmp_path: Path) -> None:
    feed(dataset, 2, cache=tmp_path)
    (folder,) = tmp_path.iterdir()
    old, new = folder / "7.data-00000-of-00001.tempstate1", folder / "8.index.tempstate2"
    for path in (old, new):
        path.write_bytes(b"x")
    os.utime(old, (time.time() - 7200,) * 2)
    feed(dataset, 2, cache=tmp_path)
    assert not old.exists()
    # A file that another process is writing stays.
    assert new.exists()


def test_rejects_too_little_space_for_the_missing_pieces(
    dataset: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=20_000))
    with pytest.raises(UsageError, match=r"take .* more, and 20\.0 kB are free there. Pass a folder on a larger disk"):
        feed(dataset, 2, cache=tmp_path)
    # A host of eight reads an eighth.
    feed(dataset, 2, host=1, hosts=8, reading=Reading(pieces=True, piece_bytes=8 * 31, lanes=48), cache=tmp_path)
    monkeypatch.undo()
    feed(dataset, 2 * EPOCH, cache=tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=0))
    feed(dataset, 2, cache=tmp_path)


def test_rejects_a_file_in_place_of_the_folder(dataset: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(UsageError, match="is not a folder"):
        feed(dataset, 1, cache=tmp_path / "file")


def test_saves_and_restores_iterators(dataset: str, tmp_path: Path) -> None:
    input_fn = make_input_fn(
        dataset, "train", training=True, seed=4, shuffle=96, reading=READING, cache=tmp_path / "cache"
    )
    batches = input_fn({"batch_size": BATCH})
    iterator = iter(batches)
    for _ in range(20):
        next(iterator)
    path = tf.train.Checkpoint(iterator=iterator).save(str(tmp_path / "saved"))
    expected = [next(iterator)["x"].numpy().tolist() for _ in range(10)]
    restored = iter(batches)
    tf.train.Checkpoint(iterator=restored).restore(path)
    assert [next(restored)["x"].numpy().tolist() for _ in range(10)] == expected

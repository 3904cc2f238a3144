"""Reading in large pieces, as from an object store: the guarantees of the order, on local files cut into small pieces."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import tensorflow as tf

from tests.helpers.datasets import write_dataset, write_sparse_shards
from tests.helpers.hostile import write_json
from tpudata import Reading, UsageError, make_input_fn
from tpudata.format import Feature, open_dataset

RECORDS, BATCH = 3000, 48
# Pieces of about 16 records of 31 bytes: the window of 96 is a part of a piece for each of the lanes.
READING = Reading(pieces=True, piece_bytes=16 * 31, lanes=8, streams=12)
FEATURES = [Feature("x", "bytes", "uint8", (2,), "raw")]


def write(folder: Path, **options: Any) -> str:
    """Write numbered records into 5 shards of unlike sizes."""
    records = [{"x": bytes(divmod(number, 256))} for number in range(RECORDS)]
    return write_dataset(str(folder), {"train": records}, FEATURES, layout="", shards=5, **options)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write(tmp_path_factory.mktemp("plain"))


def numbers(batches: Any) -> npt.NDArray[np.int64]:
    """Return the numbers of the records of batches, [batches, rows]."""
    found: npt.NDArray[np.int64] = np.stack([batch["x"] for batch in batches]).astype(np.int64)
    joined: npt.NDArray[np.int64] = found[..., 0] * 256 + found[..., 1]
    return joined


def host_rows(
    input_fn: Any, steps: int, hosts: int, start: int = 0, chosen: Sequence[int] | None = None
) -> npt.NDArray[np.int64]:
    """Return the records of some global batches, as all hosts or the chosen ones feed them."""
    parts = []
    for host in range(hosts) if chosen is None else chosen:
        dataset = input_fn({"batch_size": BATCH}, start_step=start, host_index=host, host_count=hosts)
        parts.append(numbers(dataset.take(steps).as_numpy_iterator()))
    return np.concatenate(parts, axis=1)


@pytest.fixture(scope="module")
def epochs(dataset: str) -> npt.NDArray[np.int64]:
    """The batches of two epochs on one host."""
    input_fn = make_input_fn(dataset, "train", training=True, seed=4, shuffle=96, reading=READING)
    return host_rows(input_fn, 2 * RECORDS // BATCH, 1)


def test_every_record_comes_once_per_epoch(epochs: npt.NDArray[np.int64]) -> None:
    # Batch 62 has records of both epochs.
    halves = epochs[:62], epochs[63:]
    for half in halves:
        assert len(np.unique(half)) == half.size
    assert np.unique(epochs, return_counts=True)[1].tolist() == [2] * RECORDS
    assert np.count_nonzero(halves[0] == halves[1]) < 30
    assert np.ptp(epochs, axis=1).mean() > 0.6 * RECORDS


# With 16 hosts, four share a lane.
@pytest.mark.parametrize(("hosts", "chosen"), [(3, (0, 1, 2)), (16, (4, 7))])
def test_hosts_together_feed_the_batches_of_one(
    dataset: str, epochs: npt.NDArray[np.int64], hosts: int, chosen: Sequence[int]
) -> None:
    input_fn = make_input_fn(dataset, "train", training=True, seed=4, shuffle=96, reading=READING)
    size = BATCH // hosts
    rows = [row for host in chosen for row in range(host * size, (host + 1) * size)]
    np.testing.assert_array_equal(host_rows(input_fn, 20, hosts, 55, chosen), epochs[55:75, rows])


@pytest.mark.parametrize(("hosts", "warnings"), [(4, 0), (16, 1)])
def test_warns_of_hosts_that_share_lanes(
    dataset: str, caplog: pytest.LogCaptureFixture, hosts: int, warnings: int
) -> None:
    input_fn = make_input_fn(dataset, "train", training=True, seed=4, shuffle=96, reading=READING)
    input_fn({"batch_size": BATCH}, host_index=0, host_count=hosts)
    found = [record.getMessage() for record in caplog.records if record.name == "tpudata"]
    assert len(found) == warnings
    for text in found:
        assert text.startswith(f"{dataset} (train): 16 hosts together fetch 4.")
        assert "it has 4 lanes" in text


@pytest.mark.parametrize(
    "reading",
    [
        Reading(pieces=True, piece_bytes=16 * 31, lanes=8, streams=1),
        Reading(pieces=True, piece_bytes=16 * 31, lanes=8, streams=100, memory=1),
    ],
    ids=["one stream", "little memory"],
)
def test_streams_and_memory_do_not_change_batches(
    dataset: str, epochs: npt.NDArray[np.int64], reading: Reading
) -> None:
    input_fn = make_input_fn(dataset, "train", training=True, seed=4, shuffle=96, reading=reading)
    np.testing.assert_array_equal(host_rows(input_fn, 70, 1), epochs[:70])


@pytest.mark.parametrize("cache", [True, "folder"])
def test_a_cache_does_not_change_batches(
    dataset: str, epochs: npt.NDArray[np.int64], tmp_path: Path, cache: Any
) -> None:
    cache = tmp_path if cache == "folder" else cache
    input_fn = make_input_fn(dataset, "train", training=True, seed=4, shuffle=96, reading=READING, cache=cache)
    np.testing.assert_array_equal(host_rows(input_fn, 10, 2, 58, [1]), epochs[58:68, BATCH // 2 :])


def test_reads_compressed_shards_in_pieces_of_blocks(tmp_path: Path) -> None:
    path = write(tmp_path, compression="gzip")
    reading = Reading(pieces=True, piece_bytes=800, lanes=2)
    input_fn = make_input_fn(path, "train", training=True, seed=4, shuffle=96, reading=reading)
    found = host_rows(input_fn, 2 * RECORDS // BATCH, 1)
    assert len(np.unique(found.ravel()[: RECORDS // BATCH * BATCH])) == RECORDS // BATCH * BATCH
    np.testing.assert_array_equal(host_rows(input_fn, 9, 2, start=60), found[60:69])


def test_skips_records_in_quarantine(tmp_path: Path) -> None:
    path = write(tmp_path)
    manifest = open_dataset(path).manifest
    (shard,) = (shard for number, shard in enumerate(manifest.split("train").shards) if number == 1)
    entry = {
        "crc32c": f"{shard.crc32c:08x}",
        "bytes": shard.bytes,
        "records": [[3, 7, "damaged"], [400, 401, "damaged"]],
    }
    value = {"version": 1, "checksum": "00000000", "shards": {shard.name: entry}}
    write_json(Path(path, "index", "quarantine.json"), value)
    kept = RECORDS - 5
    input_fn = make_input_fn(path, "train", training=True, seed=4, shuffle=96, reading=READING)
    found = host_rows(input_fn, 2 * kept // BATCH, 1)
    epoch = found.ravel()[: kept // BATCH * BATCH]
    assert not {*range(603, 607), 1000} & set(epoch.tolist())
    assert len(np.unique(epoch)) >= len(epoch) - BATCH
    np.testing.assert_array_equal(host_rows(input_fn, 9, 2, start=58), found[58:67])
    evaluation = make_input_fn(path, "train", training=False, reading=READING)
    in_order = [number for number in range(RECORDS) if number not in {*range(603, 607), 1000}]
    assert host_rows(evaluation, -(-kept // BATCH), 2).ravel()[:kept].tolist() == in_order


def test_chosen_records_come_once_per_epoch(dataset: str) -> None:
    def is_even(features: dict[str, tf.Tensor]) -> tf.Tensor:
        return tf.io.decode_raw(features["x"], tf.uint8)[1] % 2 == 0

    input_fn = make_input_fn(dataset, "train", training=True, seed=4, shuffle=96, reading=READING, filter=is_even)
    found = host_rows(input_fn, 40, 2)
    np.testing.assert_array_equal(found, host_rows(input_fn, 40, 1))
    assert (found % 2 == 0).all()
    assert len(np.unique(found.ravel()[: RECORDS // 2 // BATCH * BATCH])) == RECORDS // 2 // BATCH * BATCH


@pytest.mark.parametrize("hosts", [1, 4])
def test_evaluation_and_unshuffled_training_keep_the_order(dataset: str, hosts: int) -> None:
    evaluation = make_input_fn(dataset, "train", training=False, reading=READING)
    found = host_rows(evaluation, 30, hosts, start=40)
    expected = np.minimum(np.arange(40 * BATCH, 40 * BATCH + found.size), RECORDS - 1)
    np.testing.assert_array_equal(found.ravel(), expected)
    repeated = make_input_fn(dataset, "train", training=True, shuffle=False, reading=READING)
    found = host_rows(repeated, 30, hosts, start=50)
    np.testing.assert_array_equal(found.ravel(), (50 * BATCH + np.arange(found.size)) % RECORDS)


def test_saves_and_restores_an_iterator(dataset: str, epochs: npt.NDArray[np.int64], tmp_path: Path) -> None:
    input_fn = make_input_fn(dataset, "train", training=True, seed=4, shuffle=96, reading=READING)

    def iterator() -> Iterator[Any]:
        return iter(input_fn({"batch_size": BATCH}))

    first = iterator()
    for _ in range(21):
        next(first)
    path = tf.train.Checkpoint(iterator=first).save(str(tmp_path / "c"))
    second = iterator()
    tf.train.Checkpoint(iterator=second).restore(path)
    found = numbers({"x": batch["x"].numpy()} for batch in itertools.islice(second, 10))
    np.testing.assert_array_equal(found, epochs[21:31])


def test_rejects_wrong_options() -> None:
    for wrong in ({"streams": 0}, {"lanes": 1.5}, {"memory": -1}, {"piece_bytes": True}, {"pieces": 1}):
        (name,) = wrong
        with pytest.raises(UsageError, match=rf"^Reading\.{name}: invalid value"):
            Reading(**wrong)
    with pytest.raises(UsageError, match=r"pass tpudata.Reading\(...\), or None"):
        make_input_fn("nowhere", "train", training=True, reading=5)  # type: ignore[arg-type]


def test_reports_too_little_memory(tmp_path: Path) -> None:
    # Each piece is a record of 256 GiB; the first record of a shard is read before.
    write_sparse_shards(tmp_path, [np.append(100, np.full(16, 1 << 38))] * 16)
    reading = Reading(pieces=True, piece_bytes=1 << 38, lanes=4)
    input_fn = make_input_fn(str(tmp_path), "train", training=True, seed=4, shuffle=8, reading=reading)
    with pytest.raises(UsageError, match=r"4 lanes of large pieces .* reading=tpudata.Reading\(lanes=1\)"):
        input_fn({"batch_size": BATCH})

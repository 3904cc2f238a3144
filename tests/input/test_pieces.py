"""Kinds of input read in pieces: their batches equal those of plain loops, on any number of hosts and from any step.

The loops need the private draws, and the lanes of a plan.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import tensorflow as tf

from tests.helpers.datasets import write_dataset
from tests.input.test_reading import BATCH, READING, RECORDS, host_rows, numbers, write
from tests.input.text.test_sequence import IDS, LABEL
from tpudata import FixedLengthRecordFiles, Mixture, Reading, TextLineFiles, TFRecordFiles, Tokens, make_input_fn
from tpudata.format import Feature, open_dataset
from tpudata.input.graph.reading.piece_plan import PiecePlan, plan_reading
from tpudata.input.order.draws import BLOCK_DRAWS, EPOCH_DRAWS, draw

SEED, WINDOW = 4, 96
# Pieces of 496 bytes, of which 64 are left free, have 13 records.
SHARD_RECORDS, RECORD_BYTES, PIECE_BYTES, PIECE_RECORDS = RECORDS // 5, 31, READING.piece_bytes, 13
FEATURES = [Feature("x", "bytes", "uint8", (2,), "raw")]
OPTIONS: dict[str, Any] = {"training": True, "seed": SEED, "shuffle": WINDOW, "reading": READING}


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write(tmp_path_factory.mktemp("plain"))


def loop_order(
    pieces: Sequence[Sequence[int]], batch_size: int, lanes: int, window: int, seed: int
) -> Iterator[list[int]]:
    """Yield the records of each global batch, by the rules that `tpudata.input.order.training` and `streams` state.

    Args:
        pieces: records of each piece.
        batch_size: rows of a batch.
        lanes: number of lanes.
        window: records that are permuted together.
        seed: seed of the order.
    """
    count, stride = sum(map(len, pieces)), batch_size // lanes
    turns = window // lanes // stride * stride
    assert turns > 0

    @functools.cache
    def lanes_of(epoch: int) -> list[list[int]]:
        draws = draw([len(pieces)], seed, tf.constant(epoch, tf.int64), EPOCH_DRAWS).numpy()
        # The lane of each piece: parts are runs of pieces, divided by the pieces' middles.
        stops = list(itertools.accumulate(map(len, pieces)))
        middles = [(stop - len(piece) + stop) // 2 for piece, stop in zip(pieces, stops, strict=True)]
        lane_of = [(min(middle * lanes // count, lanes - 1) - epoch * count) % lanes for middle in middles]
        lengths = [count // lanes + (lane < count % lanes) for lane in range(lanes)]
        bounds = list(itertools.accumulate(lengths))[:-1]
        records: list[int] = []
        for number in sorted(range(len(pieces)), key=lambda number: (lane_of[number], draws[number])):
            piece = list(pieces[number])
            heads = [bound - len(records) for bound in bounds if 0 < bound - len(records) < len(piece)]
            # A lane with less than half of a piece has the piece's last records.
            turn = heads[0] if len(heads) == 1 and 2 * heads[0] < len(piece) else 0
            records += piece[len(piece) - turn :] + piece[: len(piece) - turn]
        rest = iter(records)
        return [list(itertools.islice(rest, length)) for length in lengths]

    for block in itertools.count():
        draws = draw([lanes, turns], seed, tf.constant(block, tf.int64), BLOCK_DRAWS).numpy()
        mixed = []
        for slot in range(lanes):
            positions = [slot + (block * turns + turn) * lanes for turn in range(turns)]
            records = [lanes_of(at // count)[at % count % lanes][at % count // lanes] for at in positions]
            by_draw = sorted(range(turns), key=lambda turn: (positions[turn] // count, draws[slot, turn]))
            mixed.append([records[turn] for turn in by_draw])
        for first in range(0, turns, stride):
            yield [record for slot in mixed for record in slot[first : first + stride]]


def loop_batches(steps: int, *arguments: Any) -> npt.NDArray[np.int64]:
    return np.array(list(itertools.islice(loop_order(*arguments), steps)))


def pieces_of_shards(record_bytes: int = RECORD_BYTES, piece_bytes: int = PIECE_BYTES) -> list[range]:
    """Return the records of the pieces: a shard's last one has up to two pieces' bytes."""
    found = []
    for shard in range(0, RECORDS, SHARD_RECORDS):
        first, last = shard, shard + SHARD_RECORDS
        while (last - first) * record_bytes > 2 * piece_bytes:
            found.append(range(first, first + PIECE_RECORDS))
            first += PIECE_RECORDS
        found.append(range(first, last))
    return found


def piece_plan(path: str) -> PiecePlan:
    plan = plan_reading(open_dataset(path), "train", READING)
    assert isinstance(plan, PiecePlan)
    return plan


@pytest.fixture(scope="module")
def expected() -> npt.NDArray[np.int64]:
    """The batches of two epochs, by plain loops."""
    return loop_batches(2 * RECORDS // BATCH, pieces_of_shards(), BATCH, 4, WINDOW, SEED)


def check_hosts_and_starts(input_fn: Any, expected: npt.NDArray[np.int64]) -> None:
    """Check batches from the start on one host, and from the end of the first epoch on two."""
    np.testing.assert_array_equal(host_rows(input_fn, len(expected), 1), expected)
    np.testing.assert_array_equal(host_rows(input_fn, 12, 2, start=58), expected[58:70])


def test_training_follows_the_order_of_plain_loops(dataset: str, expected: npt.NDArray[np.int64]) -> None:
    check_hosts_and_starts(make_input_fn(dataset, "train", **OPTIONS), expected)


def test_parse_gets_records_in_the_order_of_plain_loops(dataset: str, expected: npt.NDArray[np.int64]) -> None:
    def parse(records: tf.Tensor) -> dict[str, tf.Tensor]:
        stored = tf.io.parse_example(records, {"x": tf.io.FixedLenFeature([], tf.string)})["x"]
        return {"x": tf.io.decode_raw(stored, tf.uint8, fixed_length=2)}

    check_hosts_and_starts(make_input_fn(dataset, "train", parse=parse, **OPTIONS), expected)


def test_tfrecord_files_follow_the_order_of_their_dataset(dataset: str, expected: npt.NDArray[np.int64]) -> None:
    files = TFRecordFiles(f"{dataset}/train-*", features=FEATURES)
    check_hosts_and_starts(make_input_fn(files, **OPTIONS), expected)
    evaluation = make_input_fn(files, training=False, reading=READING)
    found = host_rows(evaluation, -(-RECORDS // BATCH), 2)
    assert found.ravel()[:RECORDS].tolist() == list(range(RECORDS))


@pytest.mark.parametrize(("kind", "lanes"), [("fixed", 2), ("lines", 4)])
def test_other_files_follow_the_order_of_plain_loops(tmp_path: Path, kind: str, lanes: int) -> None:
    size = 7 if kind == "lines" else 2
    for shard in range(0, RECORDS, SHARD_RECORDS):
        written = range(shard, shard + SHARD_RECORDS)
        stored = [b"%05d\r\n" % number if kind == "lines" else bytes(divmod(number, 256)) for number in written]
        (tmp_path / f"{shard:05}").write_bytes(b"".join(stored))

    def of_line(features: Any) -> Any:
        number = tf.strings.to_number(features["text"], tf.int32)
        return {"x": tf.stack([number // 256, number % 256])}

    files: Any = TextLineFiles(f"{tmp_path}/*")
    if kind == "fixed":
        files = FixedLengthRecordFiles(f"{tmp_path}/*", [("x", "u1", (2,))])
    reading = Reading(pieces=True, piece_bytes=64 + PIECE_RECORDS * size, lanes=4)
    options = {**OPTIONS, "reading": reading, "transform": of_line if kind == "lines" else None}
    expected = loop_batches(70, pieces_of_shards(size, reading.piece_bytes), BATCH, lanes, WINDOW, SEED)
    check_hosts_and_starts(make_input_fn(files, **options), expected)


def test_a_mixture_takes_its_rows_from_each_input_in_turn(dataset: str, tmp_path: Path) -> None:
    other = write(tmp_path, compression="gzip")
    parts = {"dataset": dataset, "other": other}

    def numbered(features: Any, *, is_other: bool) -> Any:
        return {"x": tf.cast(features["x"], tf.int32) + tf.constant([128 * is_other, 0])}

    inputs: list[Any] = [
        make_input_fn(path, "train", **OPTIONS, transform=functools.partial(numbered, is_other=name == "other"))
        for name, path in parts.items()
    ]
    mixture = Mixture(list(zip(inputs, (0.75, 0.25), strict=True)))
    # Each of 16 pieces of a batch has 3 rows of one input: 12 of the first one, then 4 of the other.
    pieces, steps = 16, 70
    batches = [host_rows_of(input_fn, BATCH // pieces) for input_fn in inputs]
    expected = np.array(
        [np.stack([next(batches[piece >= 12]) for piece in range(pieces)], axis=1).ravel() for _ in range(steps)]
    )
    np.testing.assert_array_equal(host_rows(mixture, steps, 1), expected)
    np.testing.assert_array_equal(host_rows(mixture, 12, 2, start=58), expected[58:70])


def host_rows_of(input_fn: Any, batch_size: int) -> Iterator[npt.NDArray[np.int64]]:
    for batch in input_fn({"batch_size": batch_size}).as_numpy_iterator():
        yield numbers([batch])[0]


def test_packed_tokens_follow_the_order_of_plain_loops(tmp_path: Path) -> None:
    rows = [
        {"input_ids": [number + 1] * 8, "segment_ids": [1] * 8, "positions": list(range(8))} for number in range(1500)
    ]
    features = [Feature(name, "int64", "int64", (8,)) for name in ("input_ids", "segment_ids", "positions")]
    path = write_dataset(str(tmp_path), {"train": rows}, features, layout="packed", shards=3)
    plan = piece_plan(path)
    lanes = plan.count_lanes(BATCH)
    assert len(plan.chunks.firsts) > 20
    assert lanes > 1
    pieces = [range(*ends) for ends in zip(plan.chunks.firsts.tolist(), plan.chunks.stops.tolist(), strict=True)]
    expected = loop_batches(40, pieces, BATCH, lanes, WINDOW, SEED)
    input_fn = make_input_fn(path, "train", **OPTIONS)
    for hosts, start in ((1, 0), (2, 25)):
        found = []
        for host in range(hosts):
            batches = input_fn({"batch_size": BATCH}, start_step=start, host_index=host, host_count=hosts)
            taken = list(batches.take(40 - start).as_numpy_iterator())
            for features_of_batch, labels in taken:
                ids = features_of_batch["input_ids"]
                np.testing.assert_array_equal(labels, np.where(np.arange(8) < 7, ids, 0))
                assert (features_of_batch["positions"] == np.arange(8)).all()
            found.append(np.stack([features_of_batch["input_ids"][:, 0] - 1 for features_of_batch, _ in taken]))
        np.testing.assert_array_equal(np.concatenate(found, axis=1), expected[start:])


def write_texts(folder: Path) -> tuple[str, npt.NDArray[np.int64]]:
    """Write 900 texts of 1 to 12 tokens, whose labels are their numbers; return the folder and the lengths."""
    lengths = np.random.default_rng(2).integers(1, 13, 900)
    records = [{"input_ids": [number + 1] * length, "label": number} for number, length in enumerate(lengths)]
    path = write_dataset(str(folder), {"train": records}, [IDS, LABEL], layout="tokens", shards=3)
    return path, lengths


@pytest.mark.parametrize("training", [True, False])
def test_buckets_follow_the_order_of_plain_loops(tmp_path: Path, training: bool) -> None:
    path, lengths = write_texts(tmp_path)
    tokens = Tokens(buckets=(4, 12))
    options = {**OPTIONS, "training": training, "tokens": tokens, "shuffle": 300 if training else None}
    input_fn = make_input_fn(path, "train", **options)
    plan = piece_plan(path)

    def order_of(bucket: int) -> Callable[[], list[int]]:
        """Return a function that returns the labels of the bucket's next batch."""
        ids = np.flatnonzero((lengths > 4) == bool(bucket))
        size, part = 24 * (1 if bucket else 3), plan.select(ids)
        if not training:
            padded = [*ids, *[ids[-1]] * (-len(ids) % size)]
            batches = iter([list(found) for found in np.reshape(padded, [-1, size])])
            return lambda: next(batches)
        pieces = [ids[first:last].tolist() for first, last in zip(part.chunks.firsts, part.chunks.stops, strict=True)]
        seed = int(np.random.SeedSequence((SEED, bucket)).generate_state(1)[0])
        lanes = part.count_lanes(size)
        assert lanes > 1
        found = loop_order(pieces, size, lanes, -(-300 * len(ids) // len(lengths)), seed)
        return lambda: next(found)

    orders = [order_of(bucket) for bucket in (0, 1)]
    steps = 60 if training else None
    whole = list(itertools.islice(input_fn({"batch_size": 24}).as_numpy_iterator(), steps))
    for features, labels in whole:
        assert labels.tolist() == orders[features["input_ids"].shape[1] == 12]()
        assert (features["input_ids"][:, 0] == labels + 1).all()
    shapes = {features["input_ids"].shape for features, _ in whole}
    assert shapes == {(72, 4), (24, 12)}
    halves = []
    for host in range(2):
        part = input_fn({"batch_size": 24}, start_step=7, host_index=host, host_count=2)
        halves.append([labels for _, labels in itertools.islice(part.as_numpy_iterator(), 20)])
    found = [np.concatenate(pair) for pair in zip(*halves, strict=True)]
    assert len(found) == min(20, len(whole) - 7)
    for labels, (_, others) in zip(found, whole[7:], strict=False):
        np.testing.assert_array_equal(labels, others)

"""Pieces that are read in threads, or between batches: each once, in time, and the same."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.datasets import Written, write_images
from tpudata import CorruptionError, StorageError, make_input_fn, open_dataset
from tpudata.input.chunks import Chunks
from tpudata.input.feed import FileFeed
from tpudata.input.options.hosts import Rows
from tpudata.input.order.training_order import TrainingOrder
from tpudata.input.reading import Reading, reading_of
from tpudata.input.source import Columns, Piece, Source, Strings
from tpudata.storage import LocalStorage

PIECES = [(first, first + 5) for first in range(0, 50, 5)]


class Noting:
    """A source that notes what it is asked, and in which threads; one piece is damaged."""

    def __init__(self, readers: int, damaged: int | None = None) -> None:
        self.readers = readers
        self.expected: list[tuple[int, int]] = []
        self.read_pieces: list[tuple[int, int]] = []
        self.threads: set[int] = set()
        self._damaged = damaged

    def expect(self, first: int, last: int) -> None:
        self.expected.append((first, last))

    def read(self, first: int, last: int) -> Piece:
        self.threads.add(threading.get_ident())
        self.read_pieces.append((first, last))
        if first == self._damaged:
            raise CorruptionError("shard", first, "broken")
        return Piece({"number": np.arange(first, last)}, ())


def begun(source: Noting, pieces: list[tuple[int, int]]) -> tuple[Reading, Any, dict[int, list[int]]]:
    kept: dict[int, list[int]] = {}

    def keep(number: int, piece: Piece) -> None:
        kept[number] = piece.columns["number"].tolist()

    reading = reading_of(source)
    return reading, reading.begin(pieces, keep), kept


@pytest.mark.parametrize("readers", [1, 3])
@pytest.mark.parametrize("count", [1, 2, 3, 7, 10])
def test_every_piece_is_read_once(readers: int, count: int) -> None:
    source = Noting(readers)
    reading, parts, kept = begun(source, PIECES[:count])
    for part in parts:
        part.result()
        part.result()
    reading.fed(100)
    reading.close()
    assert kept == {number: list(range(*piece)) for number, piece in enumerate(PIECES[:count])}
    assert sorted(source.read_pieces) == PIECES[:count]
    assert (threading.get_ident() in source.threads) == (readers == 1)


def test_between_batches_as_much_is_read_as_is_fed() -> None:
    source = Noting(1)
    reading, parts, _ = begun(source, PIECES)
    # The disk may begin with all; nothing waits for it yet.
    assert source.expected == PIECES
    done = []
    for rows in (1, 3, 1, 1, 12, 0):
        reading.fed(rows)
        done.append(len(source.read_pieces))
    assert done == [1, 1, 1, 2, 4, 4]
    parts[9].result()
    assert source.read_pieces == [*PIECES[:4], PIECES[9]]
    reading.fed(10**6)
    assert sorted(source.read_pieces) == PIECES
    # What was fed while there was nothing to read does not come on top of what is fed later.
    reading.begin(PIECES, lambda _number, _piece: None)
    reading.fed(1)
    assert len(source.read_pieces) == 11
    reading.close()
    reading.fed(100)
    assert len(source.read_pieces) == 11


def test_batches_read_about_as_much_each() -> None:
    source = Noting(1)
    # 16 chunks in a window, and all lanes begin where chunks do.
    order = TrainingOrder(Chunks.of([1 << 17], 16), 256, 32 * 256, 0)
    feed = FileFeed(source, order, Rows(256, 256, 0, 256), 0, 8 * 256)
    columns: Columns = {"number": np.empty(256, np.int64)}
    good = np.empty(256, np.bool_)
    read = []
    for step in range(400):
        before = len(source.read_pieces)
        feed.fill(step, columns, good)
        read.append(sum(last - first for first, last in source.read_pieces[before:]) / 256)
    feed.close()
    # Behind the first windows, which are read as one.
    assert np.quantile(read[32:], 0.99) < 2
    assert np.mean(np.array(read[32:]) == 0) < 0.1


@pytest.mark.parametrize("readers", [1, 3])
def test_damage_is_told_to_who_takes_the_piece(readers: int) -> None:
    source = Noting(readers, damaged=20)
    reading, parts, kept = begun(source, PIECES)
    reading.fed(100)
    told = []
    for number, part in enumerate(parts):
        for _ in range(2):
            try:
                part.result()
            except CorruptionError as error:
                told.append((number, error.offset))
    reading.close()
    assert told == [(4 if readers == 1 else 1, 20)] * 2
    assert 4 not in kept
    assert kept.keys() >= {0, 1, 2, 3}


def test_what_is_closed_is_not_read() -> None:
    release = threading.Event()

    class Waiting(Noting):
        def read(self, first: int, last: int) -> Piece:
            release.wait(10)
            return super().read(first, last)

    source = Waiting(2)
    reading, *_ = begun(source, PIECES)
    for piece in PIECES:
        reading.begin([piece], lambda _number, _piece: None)
    reading.close()
    release.set()
    reading_threads = [thread for thread in threading.enumerate() if thread.name.startswith("tpudata-read")]
    for thread in reading_threads:
        thread.join(10)
    assert len(source.read_pieces) <= len(PIECES)


def input_fn_of(path: str, *, training: bool) -> Callable[..., Any]:
    if not training:
        return make_input_fn(path, "train", training=False)
    return make_input_fn(path, "train", training=True, shuffle_buffer=64, seed=3)


def batches(input_fn: Callable[..., Any], count: int) -> list[bytes]:
    return [
        b"".join(np.asarray(leaf).tobytes() for leaf in (*features.values(), labels))
        for features, labels in input_fn({"batch_size": 16}).take(count).as_numpy_iterator()
    ]


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("layout", ["raw", "imagenet"])
def test_batches_do_not_depend_on_who_reads(
    raw_digits: Written, digits: Written, layout: str, training: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    path = (raw_digits if layout == "raw" else digits).path
    for readers in (1, 4):
        monkeypatch.setattr("tpudata.input.source._LOCAL_READERS", readers)
        found.append(batches(input_fn_of(path, training=training), 60))
    assert found[0] == found[1]
    assert len(found[0]) == (60 if training else 19)


def noted(name: str, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int, int]]:
    """The path, offset and length of all calls of a function of LocalStorage from now on."""
    calls: list[tuple[str, int, int]] = []
    real = getattr(LocalStorage, name)

    def noting(storage: LocalStorage, path: str, offset: int, length: int, **given: bool) -> Any:
        calls.append((path, offset, length))
        return real(storage, path, offset, length, **given)

    monkeypatch.setattr(LocalStorage, name, noting)
    return calls


@pytest.mark.parametrize("compression", [None, "gzip"])
@pytest.mark.parametrize("training", [True, False])
def test_the_disk_is_told_what_will_be_read(
    tmp_path: Path, compression: str | None, training: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = np.random.default_rng(0).integers(0, 256, (500, 8, 8, 1), dtype=np.uint8)
    labels = [number % 10 for number in range(500)]
    written = write_images(
        str(tmp_path),
        {"train": list(images)},
        {"train": labels},
        shape=(8, 8, 1),
        layout="raw",
        compression=compression,
    )
    expected, read = noted("expect", monkeypatch), noted("read_range", monkeypatch)
    monkeypatch.setattr("tpudata.input.source._LOCAL_READERS", 1)
    assert len(batches(input_fn_of(written.path, training=training), 20)) == 20
    assert set(read) <= set(expected)
    assert len(read) >= 3


def test_the_disk_is_told_of_so_many_pieces_at_most() -> None:
    pieces = [(first, first + 1) for first in range(300)]
    source = Noting(1)
    reading, parts, _ = begun(source, pieces)
    assert source.expected == pieces[:64]
    reading.fed(10)
    assert source.expected == pieces[:74]
    # Also where nothing is fed: all are waited for, one after the other.
    for number, part in enumerate(parts):
        part.result()
        assert len(source.expected) <= min(300, max(10, number + 1) + 64)
    assert source.expected == source.read_pieces == pieces


def test_what_is_wrong_with_an_index_is_told_by_who_reads(raw_digits: Written, tmp_path: Path) -> None:
    dataset = open_dataset(str(shutil.copytree(raw_digits.path, tmp_path / "copy")))
    shutil.rmtree(tmp_path / "copy" / "index")
    source = Source(dataset, "train", Strings(), verify=True, max_corrupt=0)
    source.expect(0, 5)
    with pytest.raises(StorageError):
        source.read(0, 5)


@pytest.mark.parametrize(("batch_size", "window"), [(32, 2048), (64, 1024), (256, 2400), (16, 700)])
def test_what_is_next_is_begun_in_time(batch_size: int, window: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tpudata.input.reading._TOLD", 10**6)
    begun_by_step = []
    for together in (1, 16):
        monkeypatch.setattr("tpudata.input.feed._TOGETHER", together)
        source = Noting(1)
        order = TrainingOrder(Chunks.of([20_000], 16), batch_size, window, 1)
        feed = FileFeed(source, order, Rows(batch_size, batch_size, 0, batch_size), 0, window // 4)
        columns: Columns = {"number": np.empty(batch_size, np.int64)}
        good = np.empty(batch_size, np.bool_)
        steps = []
        for step in range(300):
            feed.fill(step, columns, good)
            np.testing.assert_array_equal(columns["number"], order.ids(order.positions(step, 0, batch_size)))
            steps.append(len(source.expected))
        begun_by_step.append(steps)
        feed.close()
    assert begun_by_step[0] == begun_by_step[1]

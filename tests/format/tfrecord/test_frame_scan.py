"""Where records begin in TFRecord files without an index: what TensorFlow's readers find there.

The scan is private: its memory and its reads do not show in records.
"""

from __future__ import annotations

import os
import tempfile
import tracemalloc
import zlib
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from tpudata import CorruptionError, TFRecordFiles, make_input_fn
from tpudata.format import read_records
from tpudata.format.tfrecord import frame_scan as scan
from tpudata.storage import Entry, storage_for


def entry(path: str) -> Entry:
    found = storage_for(path).stat(path)
    assert found is not None
    return found


def write(path: str, records: list[bytes]) -> str:
    with tf.io.TFRecordWriter(path) as writer:
        for record in records:
            writer.write(record)
    return path


@settings(max_examples=60, deadline=None)
@given(
    runs=st.lists(st.tuples(st.integers(0, 300), st.integers(1, 40)), max_size=12),
    read_bytes=st.sampled_from([12, 50, 1000, 1 << 22]),
    large=st.sampled_from([1, 100, 1 << 14]),
)
def test_finds_the_offsets_that_the_reader_finds(runs: list[tuple[int, int]], read_bytes: int, large: int) -> None:
    records = [os.urandom(size) for size, count in runs for _ in range(count)]
    with tempfile.TemporaryDirectory() as folder:
        path = write(f"{folder}/a", records)
        found = scan.frame_offsets(entry(path), read_bytes=read_bytes, large_bytes=large)
        assert found.dtype == np.int64
        assert found.tolist() == [*(offset for offset, _ in read_records(path)), Path(path).stat().st_size]


def test_does_not_read_large_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(str(tmp_path / "a"), [bytes(100_000)] * 20)
    storage, read = storage_for(path), []
    real = storage.read_range

    def counted(path: str, offset: int, length: int, **given: bool) -> bytes:
        read.append(length)
        return real(path, offset, length, **given)

    monkeypatch.setattr(storage, "read_range", counted)
    assert len(scan.frame_offsets(entry(path), read_bytes=1 << 17)) == 21
    assert sum(read) < 150_000


def test_small_records_take_at_most_12_bytes_each(tmp_path: Path) -> None:
    record = Path(write(str(tmp_path / "one"), [b"\0"])).read_bytes()
    (tmp_path / "a").write_bytes(record * 500_000)
    file = entry(str(tmp_path / "a"))
    tracemalloc.start()
    try:
        found = scan.frame_offsets(file)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert np.array_equal(found, np.arange(500_001) * len(record))
    # The list of offsets as it grows, and some reads of 4 MB.
    assert peak < 12 * len(found) + (12 << 20)


@pytest.mark.parametrize("records", [1, 30])
@pytest.mark.parametrize("cut", [1, 5, 13, 40])
def test_names_the_record_in_which_a_file_ends(tmp_path: Path, records: int, cut: int) -> None:
    path = write(str(tmp_path / "a"), [bytes(50)] * records)
    data = Path(path).read_bytes()
    Path(path).write_bytes(data[:-cut])
    with pytest.raises(CorruptionError, match=rf"{path} at byte {66 * (records - 1)}: the file ends inside a record"):
        scan.frame_offsets(entry(path))


@pytest.mark.parametrize("left", [1, 11])
def test_names_the_header_in_which_a_file_ends(tmp_path: Path, left: int) -> None:
    path = write(str(tmp_path / "a"), [bytes(50)] * 3)
    Path(path).write_bytes(Path(path).read_bytes()[: 132 + left])
    with pytest.raises(CorruptionError, match=rf"at byte 132: the file ends inside a record's header \({left} of 12"):
        scan.frame_offsets(entry(path))


@pytest.mark.parametrize("place", [1, 11])
@pytest.mark.parametrize("number", [0, 7, 29])
def test_names_the_record_with_a_damaged_length_and_a_fix(tmp_path: Path, number: int, place: int) -> None:
    path = write(str(tmp_path / "a"), [bytes([i] * 50) for i in range(30)])
    data = bytearray(Path(path).read_bytes())
    data[66 * number + place] ^= 1
    Path(path).write_bytes(data)
    with pytest.raises(
        CorruptionError, match=rf"{path} at byte {66 * number}: the checksum of a record's length"
    ) as caught:
        make_input_fn(TFRecordFiles(path), training=False, parse=tf.strings.length)
    assert "the next record cannot be located" in caught.value.reason
    assert "tpudata.format.read_records yields the records before it" in caught.value.reason
    reader = read_records(path)
    assert [next(reader)[1] for _ in range(number)] == [bytes([i] * 50) for i in range(number)]
    with pytest.raises(CorruptionError, match=rf"at byte {66 * number}: the checksum of a record's length"):
        next(reader)


def test_rejects_compressed_files_with_the_fix(tmp_path: Path) -> None:
    path = str(tmp_path / "a.gz")
    with tf.io.TFRecordWriter(path, "GZIP") as writer:
        writer.write(bytes(50))
    with pytest.raises(CorruptionError, match=rf"{path} at byte 0: the file is compressed.*gunzip"):
        scan.frame_offsets(entry(path))


def test_rejects_zlib_files_by_name(tmp_path: Path) -> None:
    path = str(tmp_path / "a")
    for level in (1, 6, 9):
        options = tf.io.TFRecordOptions("ZLIB", compression_level=level)
        with tf.io.TFRecordWriter(path, options) as writer:
            writer.write(bytes(50))
        with pytest.raises(CorruptionError, match=rf"{path} at byte 0: the file is compressed with ZLIB"):
            scan.frame_offsets(entry(path))
    Path(path).write_bytes(zlib.compress(b"other"))
    with pytest.raises(CorruptionError, match="the checksum of a record's length"):
        scan.frame_offsets(entry(path))


def test_accepts_a_first_length_that_looks_like_gzip(tmp_path: Path) -> None:
    # 0x88b1f bytes: the file begins with gzip's three.
    path = write(str(tmp_path / "a"), [bytes(0x088B1F)])
    assert Path(path).read_bytes().startswith(scan.GZIP_MAGIC)
    assert scan.frame_offsets(entry(path)).tolist() == [0, 0x088B1F + 16]

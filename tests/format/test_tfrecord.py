"""TFRecord framing against TensorFlow's reader and writer."""

from __future__ import annotations

import io
from pathlib import Path

import google_crc32c
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from tpudata.errors import CorruptionError, StorageError
from tpudata.format import RecordWriter, read_records
from tpudata.format.tfrecord import Written, masked_crc32c

RECORDS = [b"", b"a", b"hello" * 10, bytes(range(256)), b"\x00" * 20_000]


def write(records: list[bytes], block_records: int = 2) -> tuple[bytes, Written]:
    file = io.BytesIO()
    writer = RecordWriter(file, block_records)
    for record in records:
        writer.write(record)
    return file.getvalue(), writer.written()


def test_the_bytes_are_those_that_tensorflow_writes(tmp_path: Path) -> None:
    path = tmp_path / "theirs"
    with tf.io.TFRecordWriter(str(path)) as writer:
        for record in RECORDS:
            writer.write(record)
    assert write(RECORDS)[0] == path.read_bytes()
    assert [record for _, record in read_records(str(path))] == RECORDS


def test_tensorflow_reads_what_is_written(tmp_path: Path) -> None:
    path = tmp_path / "ours"
    path.write_bytes(write(RECORDS)[0])
    assert list(tf.data.TFRecordDataset(str(path)).as_numpy_iterator()) == RECORDS


@settings(max_examples=60, deadline=None)
@given(st.lists(st.binary(max_size=100), max_size=12), st.integers(1, 5))
def test_offsets_and_checksums_are_those_of_slices(records: list[bytes], block_records: int) -> None:
    data, written = write(records, block_records)
    offsets = written.offsets
    assert len(offsets) == len(records) + 1
    assert (offsets[0], offsets[-1]) == (0, len(data))
    for record, start, end in zip(records, offsets[:-1], offsets[1:], strict=True):
        assert data[start + 12 : end - 4] == record
    starts = range(0, len(records), block_records)
    blocks = [data[offsets[i] : offsets[min(i + block_records, len(records))]] for i in starts]
    assert written.block_crc32c == [google_crc32c.value(block) for block in blocks]
    assert written.crc32c == google_crc32c.value(data)


def test_written_is_a_snapshot() -> None:
    writer = RecordWriter(io.BytesIO(), 2)
    writer.write(b"a")
    first = writer.written()
    writer.write(b"b")
    assert (len(first.offsets), len(first.block_crc32c)) == (2, 1)
    assert len(writer.written().block_crc32c) == 1


def test_the_masked_checksum_of_a_known_vector() -> None:
    # CRC-32C of "123456789" is 0xe3069283 (RFC 3720); the mask as TensorFlow's lib/hash/crc32c.h has it.
    assert masked_crc32c(b"123456789") == ((0xE3069283 >> 15 | 0xE3069283 << 17) + 0xA282EAD8) % 2**32


def test_records_come_with_their_offsets(tmp_path: Path) -> None:
    path = tmp_path / "file"
    data, written = write(RECORDS)
    path.write_bytes(data)
    assert list(read_records(str(path))) == list(zip(written.offsets, RECORDS, strict=False))


def test_every_flipped_bit_is_found_at_its_record(tmp_path: Path) -> None:
    path = tmp_path / "file"
    records = [b"", b"abc", b"\x00\xff" * 3]
    data, written = write(records)
    for position in range(len(data)):
        number = max(i for i in range(3) if written.offsets[i] <= position)
        for bit in range(8):
            damaged = bytearray(data)
            damaged[position] ^= 1 << bit
            path.write_bytes(damaged)
            reader = read_records(str(path))
            assert [record for _, record in (next(reader) for _ in range(number))] == records[:number]
            with pytest.raises(CorruptionError) as caught:
                next(reader)
            assert (caught.value.path, caught.value.offset) == (str(path), written.offsets[number])


def test_every_cut_is_found_at_its_record(tmp_path: Path) -> None:
    path = tmp_path / "file"
    data, written = write([b"", b"abc", b"\x00\xff" * 3])
    for length in range(len(data)):
        path.write_bytes(data[:length])
        if length in written.offsets:
            assert len(list(read_records(str(path)))) == written.offsets.index(length)
            continue
        with pytest.raises(CorruptionError) as caught:
            list(read_records(str(path)))
        assert caught.value.offset == max(offset for offset in written.offsets if offset <= length)


def test_a_length_with_a_fitting_checksum_beyond_the_file_allocates_nothing(tmp_path: Path) -> None:
    path = tmp_path / "file"
    length = (2**62).to_bytes(8, "little")
    path.write_bytes(length + masked_crc32c(length).to_bytes(4, "little") + b"short")
    with pytest.raises(CorruptionError, match=f"ends inside a record of {2**62} bytes"):
        list(read_records(str(path)))


def test_other_files(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("this is no TFRecord file")
    with pytest.raises(CorruptionError, match="at byte 0"):
        list(read_records(str(tmp_path / "text")))
    (tmp_path / "empty").touch()
    assert list(read_records(str(tmp_path / "empty"))) == []
    with pytest.raises(StorageError, match="missing"):
        list(read_records(str(tmp_path / "missing")))

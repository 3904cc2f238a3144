"""TFRecord framing against TensorFlow's reader and writer."""

from __future__ import annotations

import gzip
import io
from pathlib import Path

import pytest
import tensorflow as tf

from tpudata.errors import CorruptionError, StorageError
from tpudata.format import RecordWriter, read_records
from tpudata.format.tfrecord.framing import pack_checksum, pack_frame, pack_header, unpack_frame

RECORDS = [b"", b"a", b"hello" * 10, bytes(range(256)), b"\x00" * 20_000]


def write(records: list[bytes], block_records: int = 2) -> tuple[bytes, list[int]]:
    file = io.BytesIO()
    writer = RecordWriter(file, block_records)
    for record in records:
        writer.write(record)
    offsets = writer.finish().offsets.tolist()
    return file.getvalue(), offsets


def test_writes_the_bytes_that_tensorflow_writes(tmp_path: Path) -> None:
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


def test_masked_checksum_matches_a_known_vector() -> None:
    # CRC-32C of "123456789" is 0xe3069283 (RFC 3720); the mask as TensorFlow's lib/hash/crc32c.h has it.
    masked = ((0xE3069283 >> 15 | 0xE3069283 << 17) + 0xA282EAD8) % 2**32
    assert pack_checksum(0xE3069283) == masked.to_bytes(4, "little")


def test_reads_records_with_their_offsets(tmp_path: Path) -> None:
    path = tmp_path / "file"
    data, offsets = write(RECORDS)
    path.write_bytes(data)
    assert list(read_records(str(path))) == list(zip(offsets, RECORDS, strict=False))


def test_detects_every_flipped_bit_at_its_record(tmp_path: Path) -> None:
    path = tmp_path / "file"
    records = [b"", b"abc", b"\x00\xff" * 3]
    data, offsets = write(records)
    for position in range(len(data)):
        number = max(i for i in range(3) if offsets[i] <= position)
        for bit in range(8):
            damaged = bytearray(data)
            damaged[position] ^= 1 << bit
            path.write_bytes(damaged)
            reader = read_records(str(path))
            assert [record for _, record in (next(reader) for _ in range(number))] == records[:number]
            with pytest.raises(CorruptionError) as caught:
                next(reader)
            assert (caught.value.path, caught.value.offset) == (str(path), offsets[number])


def test_a_frame_gives_its_record_and_every_flipped_bit_is_detected() -> None:
    for record in (b"", b"abc", bytes(300)):
        frame = pack_frame(record)
        assert unpack_frame(frame, "file", 7) == record
        for bit in range(8 * len(frame)):
            damaged = bytearray(frame)
            damaged[bit // 8] ^= 1 << bit % 8
            with pytest.raises(CorruptionError) as caught:
                unpack_frame(bytes(damaged), "file", 7)
            assert (caught.value.path, caught.value.offset) == ("file", 7)
            assert ("length" if bit < 96 else "checksum of a record") in caught.value.reason


def test_reads_a_compressed_record_that_takes_several_reads(tmp_path: Path) -> None:
    path = tmp_path / "file.gz"
    records = [bytes(range(256)) * (3 << 16), b"next"]
    path.write_bytes(gzip.compress(b"".join(map(pack_frame, records)), 1))
    assert [record for _, record in read_records(str(path), "gzip")] == records


def test_detects_every_truncation_at_its_record(tmp_path: Path) -> None:
    path = tmp_path / "file"
    data, offsets = write([b"", b"abc", b"\x00\xff" * 3])
    for length in range(len(data)):
        path.write_bytes(data[:length])
        if length in offsets:
            assert len(list(read_records(str(path)))) == offsets.index(length)
            continue
        with pytest.raises(CorruptionError) as caught:
            list(read_records(str(path)))
        assert caught.value.offset == max(offset for offset in offsets if offset <= length)


def test_rejects_a_length_beyond_the_file_despite_a_valid_checksum(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(pack_header(2**62) + b"short")
    with pytest.raises(CorruptionError, match=f"ends inside a record of {2**62} bytes"):
        list(read_records(str(path)))


def test_rejects_other_files_and_reads_an_empty_one(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("this is no TFRecord file")
    with pytest.raises(CorruptionError, match="at byte 0"):
        list(read_records(str(tmp_path / "text")))
    (tmp_path / "empty").touch()
    assert list(read_records(str(tmp_path / "empty"))) == []
    with pytest.raises(StorageError, match="missing"):
        list(read_records(str(tmp_path / "missing")))

"""Writing a shard whole or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import google_crc32c
import pytest

from tpudata.errors import DatasetError, StorageError
from tpudata.format import ShardIndex, index_name, read_records, shard_name, write_shard


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_writes_a_shard_and_its_index(tmp_path: Path) -> None:
    records = [f"record {i}".encode() for i in range(150)]
    name = shard_name("train", 2, 12)
    written = write_shard(str(tmp_path), name, iter(records), summary=lambda: {"sum": 3})
    assert files(tmp_path) == ["index/train-00002-of-00012.index", "train-00002-of-00012.tfrecord"]
    data = (tmp_path / name).read_bytes()
    assert (written.name, written.records, written.bytes, written.crc32c) == (
        name,
        150,
        len(data),
        google_crc32c.value(data),
    )
    assert [record for _, record in read_records(str(tmp_path / name))] == records
    index = ShardIndex.from_bytes((tmp_path / index_name(name)).read_bytes(), "index")
    assert [int(offset) for offset in index.offsets[:-1]] == [o for o, _ in read_records(str(tmp_path / name))]
    assert index.summary == {"sum": 3}
    assert len(index.block_crc32c) == 3  # Blocks of 64.


def test_takes_the_summary_after_the_last_record(tmp_path: Path) -> None:
    seen = 0

    def records() -> Iterator[bytes]:
        nonlocal seen
        for _ in range(5):
            seen += 1
            yield b"x"

    write_shard(str(tmp_path), "a-00000-of-00001.tfrecord", records(), summary=lambda: {"seen": seen})
    assert ShardIndex.from_bytes((tmp_path / "index/a-00000-of-00001.index").read_bytes(), "i").summary == {"seen": 5}


def test_an_error_in_the_middle_leaves_no_file(tmp_path: Path) -> None:
    def records() -> Iterator[bytes]:
        yield b"x" * 3_000_000
        raise ValueError("the source broke")

    with pytest.raises(ValueError, match="the source broke"):
        write_shard(str(tmp_path), "a-00000-of-00001.tfrecord", records())
    assert files(tmp_path) == []


def test_rejects_a_shard_without_records_and_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match=r"a-00000-of-00001\.tfrecord: no records"):
        write_shard(str(tmp_path), "a-00000-of-00001.tfrecord", [])
    assert files(tmp_path) == []


@pytest.mark.parametrize("name", ["../a-00000-of-00001.tfrecord", "a.tfrecord"])
def test_rejects_an_invalid_name_and_leaves_no_file(tmp_path: Path, name: str) -> None:
    with pytest.raises(DatasetError, match="SPLIT-NNNNN-of-NNNNN"):
        write_shard(str(tmp_path / "folder"), name, [b"x"])
    assert list(tmp_path.iterdir()) == []


def test_a_failed_rewrite_keeps_the_old_shard(tmp_path: Path) -> None:
    write_shard(str(tmp_path), "a-00000-of-00001.tfrecord", [b"old"])
    before = {name: (tmp_path / name).read_bytes() for name in files(tmp_path)}
    with pytest.raises(DatasetError):
        write_shard(str(tmp_path), "a-00000-of-00001.tfrecord", [])
    assert {name: (tmp_path / name).read_bytes() for name in files(tmp_path)} == before


def test_reports_a_folder_that_cannot_be_created(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="could not be written"):
        write_shard(str(tmp_path / "file"), "a-00000-of-00001.tfrecord", [b"x"])


def test_equal_records_give_equal_bytes(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        write_shard(str(tmp_path / folder), "x-00000-of-00001.tfrecord", [b"1", b"2"], summary=lambda: {"b": 1, "a": 2})
    assert files(tmp_path / "a") == files(tmp_path / "b")
    for name in files(tmp_path / "a"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_rejects_a_record_that_no_parser_accepts(tmp_path: Path) -> None:
    # One piece many times over: the record is never made.
    piece = bytes(1 << 20)
    with pytest.raises(
        DatasetError, match=r"a record is too large \(got 2147483648 bytes, expected at most 2147483647"
    ):
        write_shard(str(tmp_path), shard_name("train", 0, 1), [[piece] * 2048])
    assert files(tmp_path) == []

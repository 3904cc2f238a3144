"""The index that NVIDIA DALI reads, next to the shards."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from tests.helpers.datasets import write_dataset
from tpudata.cli import main
from tpudata.errors import UsageError
from tpudata.format import Feature, open_dataset, verify, write_shard
from tpudata.format.shards.dali_index import add_dali_index

FEATURES = [Feature("text", "bytes", "string", encoding="utf8")]


def walked(path: Path) -> list[tuple[int, int]]:
    """The offset and size of each record, by the TFRecord format alone, as tfrecord2idx walks a file."""
    data, found, offset = path.read_bytes(), [], 0
    while offset < len(data):
        (length,) = struct.unpack_from("<Q", data, offset)
        found.append((offset, 8 + 4 + length + 4))
        offset += found[-1][1]
    return found


def indexed(path: Path) -> list[tuple[int, ...]]:
    return [tuple(map(int, line.split(" "))) for line in path.read_text().splitlines()]


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    records = [{"text": "x" * number} for number in range(10)]
    write_dataset(str(tmp_path / "d"), {"train": records, "test": records[:3]}, FEATURES, layout="text", shards=2)
    return tmp_path / "d"


def test_index_command_indexes_every_record_of_a_dataset(dataset: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = {path: path.read_bytes() for path in dataset.rglob("*") if path.is_file()}
    assert main(["index", str(dataset)]) == 0
    assert "4 shards" in capsys.readouterr().out
    shards = sorted(dataset.glob("*.tfrecord"))
    assert len(shards) == 4
    for shard in shards:
        assert indexed(dataset / "index" / f"{shard.stem}.idx") == walked(shard)
    assert [path.name for path, data in before.items() if path.read_bytes() != data] == ["manifest.json"]
    assert open_dataset(str(dataset)).manifest.dali_index
    assert list(verify(str(dataset))) == []
    manifest = (dataset / "manifest.json").read_bytes()
    add_dali_index(str(dataset))
    assert (dataset / "manifest.json").read_bytes() == manifest


@pytest.mark.parametrize("damage", ["missing", "changed", "unlisted"])
def test_verify_names_a_damaged_index(dataset: Path, damage: str) -> None:
    path = dataset / "index" / "train-00001-of-00002.idx"
    if damage == "unlisted":
        path.write_text("0 20\n")
    else:
        add_dali_index(str(dataset))
        path.unlink() if damage == "missing" else path.write_text(path.read_text().replace("0 ", "1 ", 1))
    assert [defect.path for defect in verify(str(dataset))] == [str(path)]


def test_rejects_compressed_shards(tmp_path: Path) -> None:
    write_dataset(
        str(tmp_path / "d"), {"train": [{"text": "x"}] * 2}, FEATURES, layout="text", compression="gzip", shards=1
    )
    with pytest.raises(UsageError, match="DALI reads no compressed shards"):
        add_dali_index(str(tmp_path / "d"))
    with pytest.raises(UsageError, match="DALI reads no compressed shards"):
        write_shard(str(tmp_path), "a-00000-of-00001.tfrecord.gz", [b"x"], compression="gzip", dali_index=True)
    assert list(tmp_path.glob("a-*")) == []

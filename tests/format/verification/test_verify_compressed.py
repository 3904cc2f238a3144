"""Damage in compressed shards."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.format.verification.damage import (
    FEW,
    FIRST,
    OTHER,
    SECOND,
    WHERE,
    Replaced,
    flipped,
    places,
    reasons,
    swap,
    write_raw,
)
from tpudata.format import (
    ShardIndex,
    Split,
    encode_example,
    open_dataset,
    verify,
    write_metadata,
    write_shard,
)


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_raw(tmp_path_factory.mktemp("packed"), "gzip")


@pytest.fixture
def damaged_packed(packed: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(packed, tmp_path / "copy"))


def index_of(folder: Path, name: str) -> ShardIndex:
    return ShardIndex.from_bytes((folder / "index" / f"{name[:-9]}.index").read_bytes(), name)


def test_finds_nothing_in_an_intact_compressed_dataset(packed: Path) -> None:
    total = sum(path.stat().st_size for path in packed.glob("*.tfrecord"))
    calls: list[tuple[int, int]] = []
    assert list(verify(str(packed), progress=lambda *call: calls.append(call))) == []
    assert (sum(read for read, _ in calls), {of for _, of in calls}) == (total, {total})
    assert places(packed, workers=2) == []
    assert not (packed / "dataset_info.json").exists()


@FEW
@given(where=WHERE, name=st.sampled_from([FIRST, OTHER]))
@example(where=(0.0, 0), name=FIRST)
@example(where=(0.99999, 7), name=FIRST)
def test_finds_a_flipped_bit_in_its_block(packed: Path, where: tuple[float, int], name: str) -> None:
    path, index = packed / name, index_of(packed, name)
    content, place = flipped(path.read_bytes(), *where)
    with Replaced(path, content):
        found = places(packed)
        assert found
        assert {found_name for found_name, _ in found} == {name}
        blocks = [block for block in range(index.blocks) if index.file_range(block)[0] <= place]
        start, end = index.block_range(blocks[-1]) if blocks else (0, 1)
        # Where it changes no byte of the records, and only the file's checksum shows it, the offset is 0.
        assert all(offset == 0 or start <= (offset or 0) < end for _, offset in found)


@FEW
@given(where=st.floats(0, 1, exclude_max=True), name=st.sampled_from([FIRST, OTHER]))
@example(where=0.0, name=OTHER)
def test_finds_a_truncated_compressed_shard(packed: Path, where: float, name: str) -> None:
    path, index = packed / name, index_of(packed, name)
    size = int(where * index.shard_bytes)
    with Replaced(path, path.read_bytes()[:size]):
        cut = [index.block_range(b)[0] for b in range(index.blocks) if index.file_range(b)[1] > size]
        # The size, and the block that is cut; or, behind the last one, the checksum.
        assert places(packed) == [(name, size), (name, cut[0] if cut else 0)]


def test_finds_swapped_compressed_shards(damaged_packed: Path) -> None:
    swap(damaged_packed / FIRST, damaged_packed / SECOND)
    assert {name for name, _ in places(damaged_packed)} == {FIRST, SECOND}


def test_finds_swapped_blocks_of_a_compressed_shard(damaged_packed: Path) -> None:
    records = [encode_example({"image_raw": bytes([number]) * 16, "label": 1}) for number in range(128)]
    shard = write_shard(str(damaged_packed), FIRST, records, compression="gzip")
    manifest = open_dataset(str(damaged_packed)).manifest
    train = Split((shard, manifest.splits["train"].shards[1]))
    manifest = dataclasses.replace(manifest, splits={**manifest.splits, "train": train})
    write_metadata(str(damaged_packed), manifest, [f"class {i}" for i in range(10)])
    assert places(damaged_packed) == []
    index, data = index_of(damaged_packed, FIRST), (damaged_packed / FIRST).read_bytes()
    (a, b), (_, c) = index.file_range(0), index.file_range(1)
    swapped = data[:a] + data[b:c] + data[a:b] + data[c:]
    (damaged_packed / FIRST).write_bytes(swapped)
    assert {name for name, _ in places(damaged_packed)} == {FIRST}


def test_names_the_bytes_of_blocks_that_cannot_be_unpacked(damaged_packed: Path) -> None:
    path, index = damaged_packed / FIRST, index_of(damaged_packed, FIRST)
    (start, end), data = index.file_range(0), path.read_bytes()
    path.write_bytes(data[:start] + b"\xff" * (end - start) + data[end:])
    size = index.block_range(0)[1]
    assert places(damaged_packed) == [(FIRST, 0)]
    assert reasons(damaged_packed) == [
        f"{size} bytes of records cannot be unpacked from bytes {start} to {end} of the file (the offset counts unpacked bytes)"
    ]
    changed = bytearray(path.read_bytes())
    changed[index.file_range(1)[0] + 20] ^= 1
    path.write_bytes(changed)
    size, end = index.block_range(1)[1], index.file_range(1)[1]
    assert reasons(damaged_packed) == [
        f"{size} bytes of records cannot be unpacked from bytes {start} to {end} of the file (the offset counts unpacked bytes)"
    ]


def test_checks_a_compressed_shard_without_an_index(damaged_packed: Path) -> None:
    (damaged_packed / "index" / f"{FIRST[:-9]}.index").unlink()
    missing = (f"index/{FIRST[:-9]}.index", None)
    assert places(damaged_packed) == [missing]
    path = damaged_packed / FIRST
    data = path.read_bytes()
    path.write_bytes(flipped(data, 0.5, 3)[0])
    assert [name for name, _ in places(damaged_packed)] == [missing[0], FIRST]
    assert "the rest is not checked" in reasons(damaged_packed)[-1]
    # A gzip header may say another time, and the records are the same.
    path.write_bytes(data[:4] + b"\1" + data[5:])
    assert places(damaged_packed) == [missing, (FIRST, 0)]


def test_finds_block_offsets_that_do_not_fill_the_file(damaged_packed: Path) -> None:
    index_path = damaged_packed / "index" / f"{FIRST[:-9]}.index"
    index = index_of(damaged_packed, FIRST)
    assert index.block_offsets is not None
    offsets = index.block_offsets.copy()
    offsets[-1] += np.uint64(1)
    index_path.write_bytes(dataclasses.replace(index, block_offsets=offsets).to_bytes())
    assert places(damaged_packed) == [(f"index/{FIRST[:-9]}.index", 0)]


def test_reports_tfds_metadata_of_a_compressed_dataset(damaged_packed: Path) -> None:
    (damaged_packed / "features.json").write_text("{}")
    assert places(damaged_packed) == [("features.json", None)]

"""Records in quarantine: found by their damage, skipped by every reader, on all hosts alike.

The file's class is private: `tpudata verify` writes no entries of other readers and no damaged ones.
"""

from __future__ import annotations

import itertools
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tpudata
from tests.helpers.datasets import write_dataset, write_undecodable
from tests.helpers.hostile import write_json
from tpudata import CorruptionError, DatasetError, RecordSource, as_numpy, make_input_fn
from tpudata.cli import main
from tpudata.format import Feature, open_dataset
from tpudata.format.quarantine import Quarantine, ShardQuarantine, SkippedRecords

RECORDS = 160
FEATURES = [Feature("x", "bytes", "uint8", (4,), "raw"), Feature("label", "int64", "int64")]


def written(folder: Path, compression: str | None = None) -> Path:
    """Records 0, 1, ... in two shards, each of several blocks if blocks are small."""
    records = [{"x": np.uint32(number).tobytes(), "label": number} for number in range(RECORDS)]
    write_dataset(str(folder), {"train": records}, FEATURES, layout="", shards=2, compression=compression)
    return folder


@pytest.fixture(scope="module", params=[None, "gzip"])
def whole(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("whole"), request.param)


def shard(folder: Path, number: int) -> Path:
    return sorted(folder.glob("train-*"))[number]


def quarantined(folder: Path, *flags: str) -> int:
    return main(["verify", str(folder), "--quarantine", *flags])


def numbers(folder: Path) -> list[int]:
    """Return the records that evaluation feeds, after comparing them with those of the other readers."""
    found: list[int] = []
    for features, labels in as_numpy(make_input_fn(str(folder), "train", training=False), 16):
        real = features["weights"] > 0
        assert features["x"].view("<u4")[:, 0].tolist() == labels.tolist()
        found += labels[real].tolist()
    assert [int(example["label"][0]) for example in open_dataset(str(folder)).examples("train")] == found
    source = RecordSource(str(folder), "train")
    assert len(source) == len(found)
    assert [int(record["label"]) for record in source.__getitems__(range(len(source)))] == found
    return found


def touched(folder: Path, number: int, begin: int, end: int) -> set[int]:
    """Return the records of a shard whose bytes, or whose compressed block's, are among [begin, end) of the file."""
    dataset = open_dataset(str(folder))
    entry = dataset.manifest.split("train").shards[number]
    index, first = dataset.index(entry), number * RECORDS // 2
    if index.block_offsets is None:
        starts, stops = index.offsets[:-1], index.offsets[1:]
        return {first + record for record in range(index.records) if starts[record] < end and begin < stops[record]}
    blocks = [
        block
        for block in range(index.blocks)
        if index.file_range(block)[0] < end and begin < index.file_range(block)[1]
    ]
    per_block = index.block_records
    return {
        first + r for block in blocks for r in range(block * per_block, min(index.records, (block + 1) * per_block))
    }


@pytest.mark.cases(1)
@settings(max_examples=3, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_quarantine_omits_only_damaged_records(whole: Path, tmp_path: Path, data: st.DataObject) -> None:
    folder = tmp_path / "copy"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(whole, folder)
    damaged: set[int] = set()
    for number in data.draw(st.sets(st.sampled_from([0, 1]), min_size=1), "shards"):
        path = shard(folder, number)
        content = bytearray(path.read_bytes())
        begin = data.draw(st.integers(0, len(content) - 1), "first byte")
        end = data.draw(st.integers(begin + 1, min(len(content), begin + 300)), "end")
        damaged |= touched(whole, number, begin, end)
        for place in range(begin, end):
            content[place] ^= 0x55
        path.write_bytes(content)
    assert quarantined(folder) == 0
    expected = [number for number in range(RECORDS) if number not in damaged]
    if not expected:
        with pytest.raises(DatasetError, match="'train' has no records"):
            make_input_fn(str(folder), "train", training=True)
        return
    assert numbers(folder) == expected


@pytest.mark.parametrize("share", [0, pytest.param(0.2, marks=pytest.mark.matrix), 0.8])
def test_reads_a_truncated_shard_up_to_its_end(whole: Path, tmp_path: Path, share: float) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(whole, folder)
    path = shard(folder, 1)
    size = path.stat().st_size
    left = int(share * size)
    content = path.read_bytes()[:left]
    path.write_bytes(content)
    with pytest.raises(CorruptionError, match=f"the file has {left} bytes"):
        make_input_fn(str(folder), "train", training=True)
    assert quarantined(folder) == 0
    gone = touched(whole, 1, left, size)
    assert numbers(folder) == [number for number in range(RECORDS) if number not in gone]
    path.write_bytes(content + b"more")
    with pytest.raises(
        CorruptionError, match=rf"expected {left}, as when it was put into quarantine\). Run `tpudata ver"
    ):
        make_input_fn(str(folder), "train", training=True)


@pytest.mark.parametrize("number", [0, 1])
def test_omits_the_records_of_a_missing_shard(whole: Path, tmp_path: Path, number: int) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(whole, folder)
    shard(folder, number).unlink()
    assert quarantined(folder) == 0
    assert numbers(folder) == list(range(80) if number else range(80, 160))


def test_keeps_all_records_before_extra_bytes(whole: Path, tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(whole, folder)
    path = shard(folder, 0)
    path.write_bytes(path.read_bytes() + b"\0" * 10)
    assert quarantined(folder) == 0
    assert numbers(folder) == list(range(RECORDS))


@pytest.mark.cases(1)
def test_training_feeds_the_remaining_records_alike_on_all_hosts(whole: Path, tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(whole, folder)
    content = bytearray(shard(folder, 0).read_bytes())
    for place in (200, 1900, 2000):
        content[place % len(content)] ^= 1
    shard(folder, 0).write_bytes(content)
    assert quarantined(folder) == 0
    kept = numbers(folder)
    assert 0 < len(kept) < RECORDS

    def batches(count: int, index: int, **options: Any) -> list[Any]:
        input_fn = make_input_fn(str(folder), "train", training=True, seed=1, **options)
        context = tf.distribute.InputContext(count, index, count)
        dataset = input_fn({"batch_size": 8 // count}, context)
        return [labels.tolist() for _, labels in dataset.take(3 * -(-len(kept) // 8)).as_numpy_iterator()]

    # All records in the window, a part of them, and the cache's files.
    options: tuple[dict[str, Any], ...] = ({}, {"cache": str(tmp_path / "cache")})
    if open_dataset(str(folder)).manifest.compression:
        options = ({"shuffle": 40},)
    for fed in options:
        alone = batches(1, 0, **fed)
        assert sorted([*itertools.chain(*alone)][: len(kept)]) == kept
        assert batches(2, 1, **fed) == [batch[4:] for batch in alone]


def test_decode_flag_omits_images_that_do_not_decode(tmp_path: Path) -> None:
    path = write_undecodable(str(tmp_path))
    assert quarantined(Path(path)) == 0
    assert not (Path(path) / "index" / "quarantine.json").exists()
    assert quarantined(Path(path), "--decode") == 0
    left = sum(found.count for found in open_dataset(path).quarantine.shards.values())
    assert left > 0
    input_fn = make_input_fn(path, "train", training=False)
    weights = sum(float(features["weights"].sum()) for features, _ in as_numpy(input_fn, 8))
    assert weights == open_dataset(path).manifest.split("train").records - left


def test_buckets_omit_records_in_quarantine(tmp_path: Path) -> None:
    ids = Feature("input_ids", "int64", "int64", (None,))
    records = [{"input_ids": [number] * (1 + number % 16)} for number in range(90)]
    write_dataset(str(tmp_path), {"train": records}, [ids], layout="tokens", shards=2)
    content = bytearray(shard(tmp_path, 1).read_bytes())
    content[500] ^= 1
    shard(tmp_path, 1).write_bytes(content)
    assert quarantined(tmp_path) == 0
    left = [int(example["input_ids"][0]) for example in open_dataset(str(tmp_path)).examples("train")]
    assert len(left) == 89
    for training in (True, False):
        input_fn = make_input_fn(
            str(tmp_path), "train", training=training, tokens=tpudata.Tokens(buckets=(8, 16)), seed=3
        )
        seen = set()
        for features in input_fn({"batch_size": 2}).take(50).as_numpy_iterator():
            real = features["weights"] > 0 if not training else slice(None)
            seen |= set(features["input_ids"][real, 0].tolist())
        assert seen == set(left)


def test_quarantine_ends_when_the_shard_is_restored(
    whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(whole, folder)
    content = shard(folder, 0).read_bytes()
    shard(folder, 0).write_bytes(content[:50] + b"\xff" + content[51:])
    assert main(["verify", str(folder)]) == 1
    assert quarantined(folder) == 0
    assert "readers skip" in capsys.readouterr().out
    # The damage is there still, and is named.
    assert main(["verify", str(folder)]) == 1
    shard(folder, 0).write_bytes(content)
    assert main(["verify", str(folder)]) == 0
    assert quarantined(folder) == 0
    assert not (folder / "index" / "quarantine.json").exists()
    assert numbers(folder) == list(range(RECORDS))


def test_reports_defects_that_cannot_be_put_into_quarantine(
    whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(whole, folder)
    next((folder / "index").glob("train-00001*.index")).unlink()
    assert quarantined(folder) == 1
    out = capsys.readouterr().out
    assert f"{folder}: 1 defect cannot be put into quarantine, first {folder}/index/train-00001" in out


def test_json_report_names_omitted_records(whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(whole, folder)
    shard(folder, 1).unlink()
    assert quarantined(folder, "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert report["left_out"] == {shard(whole, 1).name: [{"first": 0, "last": 80, "reason": "the shard is missing"}]}


def test_ignores_a_quarantine_of_another_shard(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = written(tmp_path)
    path = folder / "index" / "quarantine.json"
    name = shard(folder, 0).name
    path.write_bytes(Quarantine({name: ShardQuarantine(1, 5, (SkippedRecords(0, 9, "?"),))}).to_bytes())
    assert numbers(folder) == list(range(RECORDS))
    assert main(["verify", str(folder)]) == 1
    assert f"{path} at byte 0: {name} is not the shard in which damage was found" in capsys.readouterr().out


def test_detects_every_changed_byte_of_the_list(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = written(tmp_path)
    path = folder / "index" / "quarantine.json"
    data = Quarantine({shard(folder, 0).name: ShardQuarantine(1, 5, (SkippedRecords(0, 9, "ä"),))}).to_bytes()
    assert Quarantine.from_bytes(data, "x").to_bytes() == data
    for place in range(len(data)):
        with pytest.raises(CorruptionError, match="the checksum does not match the content"):
            Quarantine.from_bytes(data[:place] + bytes([data[place] ^ 4]) + data[place + 1 :], "x")
    path.write_bytes(data[:-2])
    with pytest.raises(CorruptionError, match=rf"{path} at byte 0: .*Delete it, and run `tpudata verify --quarantine`"):
        make_input_fn(str(folder), "train", training=True)
    assert main(["verify", str(folder)]) == 1
    assert "the checksum does not match the content" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("records", "message"),
    [
        ([[0, 5, "a"], [3, 7, "b"]], "begins at 3, before the end 5"),
        ([[4, 6, "a"], [0, 2, "b"]], "begins at 0, before the end 6"),
        ([[5, 3, "a"]], "has no records"),
        ([[3, 3, "a"]], "has no records"),
        ([[-2, 3, "a"]], "not a number from 0"),
        ([[0, 81, "a"]], "records up to 81 are skipped in .*, which has 80 records"),
        ([[0, 2**63, "a"]], "not a number from 0"),
        ([[0, 1]], "not a list of 3 values"),
        ([[0, 1.0, "a"]], "not a whole number"),
        ([[0, True, "a"]], "not a whole number"),
        ({}, "not a list"),
    ],
    ids=str,
)
def test_rejects_ranges_that_no_run_writes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], records: Any, message: str
) -> None:
    folder = written(tmp_path / "dataset")
    entry = open_dataset(str(folder)).manifest.split("train").shards[0]
    value = {"crc32c": f"{entry.crc32c:08x}", "bytes": entry.bytes, "records": records}
    path = folder / "index" / "quarantine.json"
    write_json(path, {"version": 1, "checksum": "00000000", "shards": {entry.name: value}})
    calls = (
        lambda: RecordSource(str(folder), "train"),
        lambda: make_input_fn(str(folder), "train", training=False),
        lambda: open_dataset(str(folder)),
    )
    for call in calls:
        with pytest.raises(CorruptionError, match=rf"^{path} at byte 0: .*{message}"):
            call()
    assert main(["verify", str(folder)]) == 1
    assert str(path) in capsys.readouterr().out
    # Nothing is damaged, so the list is removed.
    assert quarantined(folder) == 0
    assert len(RecordSource(str(folder), "train")) == RECORDS

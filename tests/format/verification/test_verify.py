"""Every kind of damage to a dataset on disk, and where `verify` reports it."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import google_crc32c
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
    record_starts,
    swap,
    write_raw,
)
from tests.helpers.datasets import FILENAME, LABEL, write_dataset
from tests.helpers.processes import assert_nobody_is_left, wait_for
from tpudata.errors import DatasetError, TpudataError
from tpudata.format import (
    Feature,
    Manifest,
    ShardIndex,
    Source,
    Split,
    encode_example,
    open_dataset,
    verify,
    write_metadata,
    write_shard,
)
from tpudata.format.example.wire import MAX_EXAMPLE_BYTES
from tpudata.format.verification.shard_check import ShardCheck

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def intact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_raw(tmp_path_factory.mktemp("raw"))


@pytest.fixture
def damaged(intact: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(intact, tmp_path / "copy"))


def test_finds_nothing_in_an_intact_dataset(intact: Path) -> None:
    assert places(intact) == []


def test_two_processes_report_the_same_defects_in_order(damaged: Path) -> None:
    assert places(damaged, workers=2) == []
    for name in (SECOND, OTHER, FIRST):
        path = damaged / name
        path.write_bytes(flipped(path.read_bytes(), 0.5, 3)[0])
    found = places(damaged, workers=2)
    assert [name for name, _ in found] == [OTHER, FIRST, SECOND]
    assert found == places(damaged)


@pytest.mark.parametrize("workers", [1, 2])
def test_progress_adds_up_to_all_shards(intact: Path, workers: int) -> None:
    total = sum(path.stat().st_size for path in intact.glob("*.tfrecord"))
    calls: list[tuple[int, int]] = []
    assert list(verify(str(intact), workers=workers, progress=lambda *call: calls.append(call))) == []
    assert sum(read for read, _ in calls) == total
    assert {of for _, of in calls} == {total}


@pytest.mark.parametrize("damage", ["missing", "truncated", "a folder", "without an index"])
@pytest.mark.parametrize("compression", [None, "gzip"])
def test_progress_adds_up_to_all_shards_whatever_is_damaged(
    tmp_path: Path, damage: str, compression: str | None
) -> None:
    write_raw(tmp_path, compression)
    total = sum(path.stat().st_size for path in tmp_path.glob("*.tfrecord"))
    shard = tmp_path / FIRST
    if damage == "truncated":
        shard.write_bytes(shard.read_bytes()[:-100])
    elif damage == "without an index":
        (tmp_path / "index" / f"{shard.stem}.index").unlink()
    else:
        shard.unlink()
        if damage == "a folder":
            shard.mkdir()
    calls: list[tuple[int, int]] = []
    assert list(verify(str(tmp_path), progress=lambda *call: calls.append(call)))
    assert (sum(read for read, _ in calls), {of for _, of in calls}) == (total, {total})


@FEW
@given(where=WHERE, name=st.sampled_from([FIRST, OTHER]))
@example(where=(0.0, 0), name=FIRST)
@example(where=(0.99999, 7), name=FIRST)
def test_finds_a_flipped_bit_at_its_record(intact: Path, where: tuple[float, int], name: str) -> None:
    path = intact / name
    starts = record_starts(path)
    content, place = flipped(path.read_bytes(), *where)
    with Replaced(path, content):
        assert places(intact) == [(name, max(start for start in starts if start <= place))]


@FEW
@given(where=st.floats(0, 1, exclude_max=True), name=st.sampled_from([FIRST, OTHER]))
@example(where=0.0, name=OTHER)
@example(where=0.5, name=OTHER)
def test_finds_a_truncated_shard_where_it_ends(intact: Path, where: float, name: str) -> None:
    path = intact / name
    starts = record_starts(path)
    size = int(where * starts[-1])
    with Replaced(path, path.read_bytes()[:size]):
        # The size, and the record that is cut; or that there are fewer.
        assert places(intact) == [(name, size), (name, max(start for start in starts if start <= size))]


def test_finds_a_shard_truncated_between_two_records(damaged: Path) -> None:
    path = damaged / FIRST
    end = record_starts(path)[10]
    path.write_bytes(path.read_bytes()[:end])
    assert places(damaged) == [(FIRST, end), (FIRST, end)]
    assert reasons(damaged)[1] == "10 records, the manifest says 70"


def test_finds_bytes_added_to_a_shard(damaged: Path) -> None:
    path = damaged / FIRST
    size = path.stat().st_size
    record = path.read_bytes()[: record_starts(path)[1]]
    path.write_bytes(path.read_bytes() + record)
    assert places(damaged) == [(FIRST, size), (FIRST, size + len(record))]
    path.write_bytes(path.read_bytes() + b"\0" * 5)
    assert places(damaged) == [(FIRST, size), (FIRST, size + len(record))]


@pytest.mark.parametrize("name", [f"index/{FIRST[:-9]}.index", "labels.txt", "dataset_info.json", "features.json"])
def test_finds_damage_in_files_next_to_the_shards(intact: Path, name: str) -> None:
    path = intact / name
    data = path.read_bytes()

    @FEW
    @given(where=WHERE)
    def flip(where: tuple[float, int]) -> None:
        content, place = flipped(data, *where)
        with Replaced(path, content):
            ((found, offset),) = places(intact)
            assert found == name
            if name.endswith(".json"):
                assert offset == place

    @FEW
    @given(where=st.floats(0, 1, exclude_max=True))
    def cut(where: float) -> None:
        with Replaced(path, data[: int(where * len(data))]):
            ((found, offset),) = places(intact)
            assert found == name
            if name.endswith(".json"):
                assert offset == int(where * len(data))

    flip()
    cut()


@FEW
@given(where=WHERE, is_cut=st.booleans())
@example(where=(0.0, 0), is_cut=True)
def test_finds_damage_in_the_manifest(intact: Path, where: tuple[float, int], is_cut: bool) -> None:
    path = intact / "manifest.json"
    content, place = flipped(path.read_bytes(), *where)
    with Replaced(path, content[:place] if is_cut else content):
        assert {name for name, _ in places(intact)} == {"manifest.json"}


def test_rejects_a_folder_without_a_manifest(damaged: Path) -> None:
    (damaged / "manifest.json").unlink()
    with pytest.raises(DatasetError, match=r"has no manifest\.json"):
        places(damaged)


def test_reports_a_manifest_without_checksum_and_checks_the_rest(damaged: Path) -> None:
    path = damaged / "manifest.json"
    value = json.loads(path.read_bytes())
    del value["checksum"]
    path.write_text(json.dumps(value))
    (damaged / FIRST).unlink()
    assert places(damaged) == [("manifest.json", 0), (FIRST, None)]


def test_finds_swapped_shards_of_one_size(damaged: Path) -> None:
    assert (damaged / FIRST).stat().st_size == (damaged / SECOND).stat().st_size
    swap(damaged / FIRST, damaged / SECOND)
    assert places(damaged) == [(FIRST, 0), (SECOND, 0)]


def test_finds_shards_swapped_with_their_indexes(damaged: Path) -> None:
    swap(damaged / FIRST, damaged / SECOND)
    indexes = [f"index/{name[:-9]}.index" for name in (FIRST, SECOND)]
    swap(damaged / indexes[0], damaged / indexes[1])
    assert places(damaged) == [(indexes[0], 0), (FIRST, 0), (indexes[1], 0), (SECOND, 0)]


def test_finds_swapped_shards_of_different_sizes(damaged: Path) -> None:
    swap(damaged / FIRST, damaged / OTHER)
    assert {name for name, _ in places(damaged)} == {FIRST, OTHER}


def test_finds_a_shard_copied_over_another(damaged: Path) -> None:
    shutil.copy(damaged / FIRST, damaged / SECOND)
    assert places(damaged) == [(SECOND, 0)]


def test_finds_missing_files(damaged: Path) -> None:
    names = [
        *("dataset_info.json", "features.json", "labels.txt"),
        *(f"index/{OTHER[:-9]}.index", FIRST, f"index/{SECOND[:-9]}.index", SECOND),
    ]
    for name in names:
        (damaged / name).unlink()
    assert places(damaged) == [(name, None) for name in names]


def test_finds_unexpected_files(damaged: Path) -> None:
    shutil.copy(damaged / FIRST, damaged / "train-00002-of-00003.tfrecord")
    (damaged / "train-notes.txt").write_text("what a glob of train-* would read")
    (damaged / "index" / "test-00009-of-00010.index").write_bytes(b"")
    (damaged / "README").write_text("harmless")
    (damaged / ".tpudata-train-1").write_text("not there yet, by its name")
    assert places(damaged) == [
        ("train-00002-of-00003.tfrecord", None),
        ("train-notes.txt", None),
        ("index/test-00009-of-00010.index", None),
    ]


def masked(data: bytes) -> bytes:
    crc = google_crc32c.value(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def reframe(path: Path, number: int) -> int:
    """Gives a record other content with a checksum that fits; returns where it begins."""
    starts, data = record_starts(path), bytearray(path.read_bytes())
    start, end = starts[number : number + 2]
    data[end - 10] ^= 0xFF
    data[end - 4 : end] = masked(bytes(data[start + 12 : end - 4]))
    path.write_bytes(data)
    return start


def test_finds_a_replaced_record_with_a_valid_checksum(damaged: Path) -> None:
    reframe(damaged / FIRST, 66)
    assert (FIRST, record_starts(damaged / FIRST)[64]) in places(damaged)
    (damaged / "index" / f"{FIRST[:-9]}.index").unlink()
    assert (FIRST, 0) in places(damaged)
    assert "the checksum of the file is" in reasons(damaged)[-1]


def test_finds_a_changed_shard_whose_index_was_adapted(damaged: Path) -> None:
    path, index_path = damaged / FIRST, damaged / "index" / f"{FIRST[:-9]}.index"
    index = ShardIndex.from_bytes(index_path.read_bytes(), "")
    reframe(path, 3)
    starts, data = record_starts(path), path.read_bytes()
    blocks = [google_crc32c.value(data[: starts[64]]), google_crc32c.value(data[starts[64] :])]
    index_path.write_bytes(dataclasses.replace(index, block_crc32c=np.array(blocks, "<u4")).to_bytes())
    found = [defect for defect in verify(str(damaged)) if "checksum of the file" in defect.reason]
    assert [(defect.path, defect.offset) for defect in found] == [(str(path), 0)]


def test_finds_an_index_with_wrong_offsets(damaged: Path) -> None:
    index_path = damaged / "index" / f"{FIRST[:-9]}.index"
    index = ShardIndex.from_bytes(index_path.read_bytes(), "")
    offsets = index.offsets.copy()
    offsets[5] += np.uint64(1)
    index_path.write_bytes(dataclasses.replace(index, offsets=offsets).to_bytes())
    assert places(damaged) == [(FIRST, record_starts(damaged / FIRST)[5])]
    offsets[5] = 0
    index_path.write_bytes(dataclasses.replace(index, offsets=offsets).to_bytes())
    assert places(damaged) == [(f"index/{FIRST[:-9]}.index", 0)]


def test_reports_all_damage_of_a_shard(damaged: Path) -> None:
    path = damaged / FIRST
    starts, data = record_starts(path), bytearray(path.read_bytes())
    for number, place in ((2, 20), (3, 1), (40, 14), (69, 9)):
        data[starts[number] + place] ^= 0x10
    path.write_bytes(data)
    assert places(damaged) == [(FIRST, starts[number]) for number in (2, 3, 40, 69)]


def test_stops_at_a_damaged_length_without_an_index(damaged: Path) -> None:
    path = damaged / FIRST
    starts, data = record_starts(path), bytearray(path.read_bytes())
    for number in (2, 5):
        data[starts[number] + 3] ^= 1
    path.write_bytes(data)
    (damaged / "index" / f"{FIRST[:-9]}.index").unlink()
    assert places(damaged) == [(f"index/{FIRST[:-9]}.index", None), (FIRST, starts[2])]
    assert "the rest is not checked" in reasons(damaged)[-1]


def test_reports_a_folder_in_place_of_a_shard(damaged: Path) -> None:
    (damaged / FIRST).unlink()
    (damaged / FIRST).mkdir()
    assert (FIRST, 0) in places(damaged)


SCHEMA = (
    Feature("ids", "int64", "int64", (2,)),
    Feature("tags", "bytes", "string", (None,), "utf8"),
    Feature("score", "float", "float32"),
    Feature("pixels", "bytes", "uint16", (2, None), "raw"),
    Feature("label", "int64", "int64", num_classes=3, label_offset=1),
)
RECORD = {"ids": [1, 2], "tags": ["a", "b"], "score": 0.5, "pixels": b"12341234", "label": 3}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"ids": None}, "feature 'ids' is missing"),
        ({"more": 1}, "feature 'more' is not in the manifest"),
        ({"ids": [1, 2, 3]}, "feature 'ids' has 3 values, which do not match the manifest's shape (2)"),
        ({"ids": []}, "feature 'ids' has 0 values, which do not match the manifest's shape (2)"),
        ({"ids": [0.5, 1.5]}, "feature 'ids' is of kind float; the manifest says int64"),
        ({"tags": [7]}, "feature 'tags' is of kind int64; the manifest says bytes"),
        ({"score": b"x"}, "feature 'score' is of kind bytes; the manifest says float"),
        (
            {"pixels": b"123"},
            "feature 'pixels' has 3 bytes, which do not match the manifest's uint16 of shape (2, any)",
        ),
        (
            {"pixels": [b"1234", b"1234"]},
            "feature 'pixels' has 2 values; raw values of the manifest's shape (2, any) are one",
        ),
        ({"pixels": 5}, "feature 'pixels' is of kind int64; the manifest says bytes"),
        ({"label": 0}, "feature 'label' is 0; the manifest's labels go from 1 to 3"),
        ({"label": 4}, "feature 'label' is 4; the manifest's labels go from 1 to 3"),
        ({"tags": []}, None),
        ({"tags": ["x"] * 9, "pixels": b"1234"}, None),
    ],
)
def test_finds_records_that_do_not_match_the_schema(
    tmp_path: Path, changes: dict[str, Any], reason: str | None
) -> None:
    other = {name: value for name, value in {**RECORD, **changes}.items() if value is not None}
    write_dataset(str(tmp_path), {"train": [RECORD, other, RECORD]}, SCHEMA, layout="own", shards=1, classes=3)
    name = "train-00000-of-00001.tfrecord"
    start = record_starts(tmp_path / name)[1]
    assert places(tmp_path) == ([(name, start)] if reason else [])
    assert reasons(tmp_path) == ([reason] if reason else [])


def test_finds_labels_outside_the_classes(tmp_path: Path) -> None:
    features = [Feature("image/class/label", "int64", "int64", (None,)), FILENAME]
    records = [{LABEL.name: labels, FILENAME.name: "x"} for labels in ([0, 9], [], [3, 10], [-1])]
    write_dataset(str(tmp_path), {"train": records}, features, layout="own", shards=1, classes=10)
    starts = record_starts(tmp_path / "train-00000-of-00001.tfrecord")
    assert [offset for _, offset in places(tmp_path)] == starts[2:4]


@pytest.mark.parametrize("shape", [(), (2,), (None,)])
def test_accepts_text_with_a_number_of_classes(shape: tuple[int | None, ...], tmp_path: Path) -> None:
    feature = Feature("x", "bytes", "string", shape, num_classes=3)
    record = {"x": "cat" if shape == () else ["cat", "dog"]}
    write_dataset(str(tmp_path), {"train": [record]}, [feature], layout="own", shards=1)
    assert reasons(tmp_path) == []


def write_one(folder: Path, record: bytes, *, labels: list[str] | None = None, **fields: Any) -> None:
    shard = write_shard(str(folder), "train-00000-of-00001.tfrecord", [encode_example({"label": 1}), record])
    feature = Feature("label", "int64", "int64")
    manifest = Manifest("own", {"train": Split((shard,))}, (feature,), Source("x", 1, 1, "0"), "tests", **fields)
    write_metadata(str(folder), manifest, labels)


def test_finds_empty_lists_of_another_kind(tmp_path: Path) -> None:
    # A list of floats without a value, named "label": TensorFlow's parser rejects it.
    empty_floats = b"\x0a\x0d\x0a\x0b\x0a\x05label\x12\x02\x12\x00"
    feature = Feature("label", "int64", "int64", (None,))
    shard = write_shard(str(tmp_path), "train-00000-of-00001.tfrecord", [encode_example({"label": [1]}), empty_floats])
    manifest = Manifest("own", {"train": Split((shard,))}, (feature,), Source("x", 1, 1, "0"), "tests")
    write_metadata(str(tmp_path), manifest, None)
    assert reasons(tmp_path) == ["feature 'label' is an empty list of kind float; the manifest says int64"]


def test_finds_a_record_that_is_not_an_example(tmp_path: Path) -> None:
    write_one(tmp_path, b"\x0a\xff\x01")
    name = "train-00000-of-00001.tfrecord"
    assert places(tmp_path) == [(name, record_starts(tmp_path / name)[1])]
    assert reasons(tmp_path)[0].startswith("the record is not a tf.train.Example")


@pytest.mark.parametrize("compression", [None, "gzip"])
def test_finds_a_record_larger_than_an_example_may_be(tmp_path: Path, compression: str | None) -> None:
    assert MAX_EXAMPLE_BYTES == 2**31 - 1
    records = [encode_example({"label": number}) for number in range(3)]
    # An unknown field of 2 bytes makes the second one longer, and no less an Example.
    records[1] += b"\x10\x00"
    shard = write_shard(str(tmp_path), "train-00000-of-00001.tfrecord", records, compression=compression)
    feature = Feature("label", "int64", "int64")
    manifest = Manifest(
        "own", {"train": Split((shard,))}, (feature,), Source("x", 1, 1, "0"), "tests", compression=compression
    )
    write_metadata(str(tmp_path), manifest, None)
    assert places(tmp_path) == []
    # 2 GiB are not written for a test: the limit comes down to the record.
    size = len(records[0])
    (defect,) = ShardCheck(str(tmp_path), manifest, None, max_record_bytes=size).find_defects(shard)
    assert (defect.path, defect.offset) == (str(tmp_path / "train-00000-of-00001.tfrecord"), size + 16)
    assert f"the record is too large (got {size + 2} bytes, expected at most {size} in a" in defect.reason
    assert not list(ShardCheck(str(tmp_path), manifest, None, max_record_bytes=size + 2).find_defects(shard))


def test_finds_a_labels_file_that_the_manifest_lacks(tmp_path: Path) -> None:
    write_one(tmp_path, encode_example({"label": 2}))
    (tmp_path / "labels.txt").write_text("cat\n")
    assert places(tmp_path) == [("labels.txt", None)]


REJECT = json.dumps({"source": "a.png", "offset": None, "reason": "no image"}) + "\n"


def reject_files(folder: Path, *contents: str) -> Iterator[Path]:
    (folder / "rejects").mkdir()
    for number, content in enumerate(contents):
        path = folder / "rejects" / f"{number}.jsonl"
        path.write_text(content)
        yield path


def test_finds_reject_lists_that_contradict_the_manifest(tmp_path: Path) -> None:
    write_one(tmp_path, encode_example({"label": 2}), rejected={"no image": 2, "other": 1})
    assert places(tmp_path) == [("rejects", None)]
    one, _ = reject_files(tmp_path, REJECT * 2, REJECT)
    assert places(tmp_path) == []
    one.write_text(REJECT + REJECT[:-2] + "\n")
    assert places(tmp_path) == [("rejects/0.jsonl", len(REJECT))]
    one.write_text(REJECT)
    assert places(tmp_path) == [("rejects", None)]
    assert reasons(tmp_path) == ["lists 2 rejected inputs, the manifest counts 3"]
    one.write_text(REJECT * 3)
    assert reasons(tmp_path) == ["lists 4 rejected inputs, the manifest counts 3"]


def test_runs_the_given_check_on_each_record(damaged: Path) -> None:
    seen = []

    def check(manifest: Manifest, values: Any) -> list[str]:
        assert manifest == open_dataset(str(damaged)).manifest
        seen.append(values["label"])
        return ["too round"] if len(seen) == 2 else []

    assert places(damaged, example_check=check) == [(OTHER, record_starts(damaged / OTHER)[1])]
    assert len(seen) == 143


def check_slowly(manifest: Manifest, example: Any) -> Iterator[str]:
    Path(os.environ["BEGUN"]).touch()
    time.sleep(60)
    yield "never"


VERIFIES = """
import sys
from tests.format.verification.test_verify import check_slowly
from tpudata.format import verify
if __name__ == "__main__":
    list(verify(sys.argv[1], example_check=check_slowly, workers=2))
"""


def test_worker_processes_end_with_their_parent(intact: Path, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(VERIFIES)
    paths = os.pathsep.join((str(ROOT), os.environ.get("PYTHONPATH", "")))
    running = {
        number: subprocess.Popen(
            [sys.executable, str(program), str(intact)],
            env={**os.environ, "BEGUN": str(tmp_path / number.name), "PYTHONPATH": paths},
            start_new_session=True,
            stderr=subprocess.DEVNULL,
        )
        for number in (signal.SIGTERM, signal.SIGKILL, signal.SIGINT)
    }
    wait_for(lambda: all((tmp_path / number.name).exists() for number in running))
    for number, process in running.items():
        # As a terminal sends Ctrl-C: to all.
        (os.killpg if number == signal.SIGINT else os.kill)(process.pid, number)
    for process in running.values():
        assert process.wait(60) != 0
        assert_nobody_is_left(process.pid)


def kill_process(*_: object) -> Iterator[str]:
    os.kill(os.getpid(), signal.SIGKILL)
    yield "never"


def test_a_killed_process_is_an_error(intact: Path) -> None:
    with pytest.raises(TpudataError, match=r"a process that checked its shards ended early.*--workers"):
        list(verify(str(intact), example_check=kill_process, workers=2))


def test_starts_no_more_processes_than_shards(intact: Path, caplog: pytest.LogCaptureFixture) -> None:
    shards = len(open_dataset(str(intact)).manifest.shard_names())
    assert list(verify(str(intact), workers=1000)) == []
    assert caplog.messages == [f"--workers 1000: {shards} are started, as many as the work has parts."]


def test_reports_a_shard_with_many_more_records_than_its_index(damaged: Path) -> None:
    shard = damaged / FIRST
    whole = shard.read_bytes()
    records = (
        len(open_dataset(str(damaged)).index(open_dataset(str(damaged)).manifest.split("train").shards[0]).offsets) - 1
    )
    # More than a block of the index has.
    shard.write_bytes(whole * (300 // records))
    assert any("records" in reason for reason in reasons(damaged))

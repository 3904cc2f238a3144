"""`tpudata reshard` from end to end, on real datasets and on the files of TensorFlow's writer."""

from __future__ import annotations

import collections
import shutil
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_datasets as tfds

from beam_jobs.images import run as convert_images
from tests.beam_jobs.resharding import assert_whole, manifest, numbered, records_of, reshard, write_files
from tests.beam_jobs.test_kill import Jobs
from tests.helpers.datasets import write_dataset
from tests.helpers.pictures import digests, make_pictures
from tests.helpers.processes import assert_nobody_is_left
from tpudata import Images, RecordSource, make_input_fn
from tpudata.cli import main
from tpudata.errors import BadRecordError, OutputError, SourceError, UsageError
from tpudata.format import Feature, decode_example, open_dataset


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_pictures(tmp_path_factory.mktemp("pictures") / "in", 90)


@pytest.fixture(scope="module")
def images(pictures: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("images") / "d"
    assert main(["convert", "images", f"--input={pictures}", f"--output={folder}", "--num-shards=3"]) == 0
    return folder


@pytest.mark.parametrize("key", [None, "record", "content", "n"])
@pytest.mark.parametrize("compression", [None, "gzip"])
def test_stores_every_record_once(key: str | None, compression: str | None, tmp_path: Path) -> None:
    inputs = [
        numbered(tmp_path / f"in{n}", {"train": count}, shards=min(count, 3), compression=compression, first=1000 * n)
        for n, count in enumerate((1, 150, 7))
    ]
    flags = [] if key is None else ["--split=train=0.5,test=0.5", f"--key={key}"]
    assert reshard(*inputs, "--output", tmp_path / "out", "--no-shuffle", *flags) == 0
    before, after = [record for path in inputs for record in records_of(path)], records_of(tmp_path / "out")
    assert after == before if key is None else sorted(after) == sorted(before)
    assert {*manifest(tmp_path / "out").splits} == ({"train"} if key is None else {"train", "test"})


@pytest.mark.parametrize(
    ("before", "shuffle"),
    [
        (None, False),
        ("gzip", True),
        pytest.param(None, True, marks=pytest.mark.matrix),
        pytest.param("gzip", False, marks=pytest.mark.matrix),
    ],
)
def test_keeps_every_record_of_every_split(before: str | None, shuffle: bool, tmp_path: Path) -> None:
    inputs = [
        numbered(tmp_path / "a", {"train": 200, "test": 70}, compression=before),
        numbered(tmp_path / "b", {"train": 90, "extra": 3}, compression=before, shards=3, first=1000),
    ]
    flags = ["--shuffle", "--seed=3"] if shuffle else []
    assert reshard(*inputs, "--output", tmp_path / "out", "--shard-size=5kB", "--compression=none", *flags) == 0
    for split in ("train", "test", "extra"):
        wanted = [record for path in inputs if split in manifest(path).splits for record in records_of(path, split)]
        found = records_of(tmp_path / "out", split)
        assert collections.Counter(found) == collections.Counter(wanted)
        assert shuffle or found == wanted
    assert shuffle == (records_of(tmp_path / "out", "train")[:50] != records_of(inputs[0], "train")[:50])
    assert_whole(tmp_path / "out")


def test_another_number_of_shards_keeps_order_and_metadata(images: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert reshard(images, "--output", out, "--num-shards=7") == 0
    assert records_of(out) == records_of(images)
    before, after = manifest(images), manifest(out)
    assert [len(split.shards) for split in after.splits.values()] == [7]
    assert (after.features, after.labels, after.layout) == (before.features, before.labels, before.layout)
    assert abs(after.splits["train"].decoded_bytes - before.splits["train"].decoded_bytes) <= 7
    assert open_dataset(str(out)).labels() == open_dataset(str(images)).labels()
    assert after.options["check"] == before.options["check"]
    assert_whole(out)


@pytest.mark.filterwarnings(r"ignore:label\(\) is deprecated:DeprecationWarning")
def test_all_readers_read_a_resharded_dataset(images: Path, tmp_path: Path) -> None:
    out = tmp_path / "images" / "1.0.0"
    assert reshard(images, "--output", out, "--shard-size=20kB", "--shards-multiple-of=2") == 0
    assert len(manifest(out).splits["train"].shards) % 2 == 0
    wanted = [bytes(decode_example(record)["image/filename"][0]) for record in records_of(images)]  # type: ignore[arg-type]
    source = RecordSource(str(out), "train", features=["image/filename"])
    assert [record["image/filename"] for record in source] == [name.decode() for name in wanted]
    found = tfds.builder_from_directory(str(out)).as_dataset(split="train")
    assert sorted(example["image/filename"] for example in tfds.as_numpy(found)) == sorted(wanted)
    input_fn = make_input_fn(str(out), "train", training=False, images=Images(size=(8, 8)))
    rows = sum(int(features["weights"].numpy().sum()) for features, _ in input_fn({"batch_size": 16}))
    assert rows == len(wanted)


def test_makes_the_same_splits_as_convert(pictures: Path, images: Path, tmp_path: Path) -> None:
    shares = "train=0.7,validation=0.3"
    assert main(["convert", "images", f"--input={pictures}", f"--output={tmp_path}/a", f"--split={shares}"]) == 0
    assert reshard(images, "--output", tmp_path / "b", f"--split={shares}") == 0
    for split in ("train", "validation"):
        one, two = (sorted(records_of(tmp_path / name, split)) for name in "ab")
        assert one == two


def test_splits_by_content_keep_equal_records_together(tmp_path: Path) -> None:
    examples = [{"x": [number % 40]} for number in range(200)]
    files = write_files(tmp_path / "in", {"a": examples[:100], "b": examples[100:]})
    assert reshard(files / "*", "--output", tmp_path / "out", "--split=train=0.5,test=0.5", "--key=content") == 0
    train, test = (set(records_of(tmp_path / "out", split)) for split in ("train", "test"))
    assert not train & test
    assert len(train | test) == 40


def test_splits_by_record_follow_the_hash_of_file_and_number(tmp_path: Path) -> None:
    numbered(tmp_path / "in", {"train": 60}, shards=2)
    assert reshard(tmp_path / "in", "--output", tmp_path / "out", "--split=train=0.6,test=0.4") == 0
    keys = [f"{s.name}:{n}" for s in manifest(tmp_path / "in").splits["train"].shards for n in range(s.records)]
    places = [int.from_bytes(blake2b(key.encode(), digest_size=16).digest()[:8], "big") for key in keys]
    wanted = [number for number, place in enumerate(places) if place >= 2**64 * 3 // 5]
    assert [decode_example(record)["n"][0] for record in records_of(tmp_path / "out", "test")] == wanted


def test_a_list_of_keys_makes_a_split(images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keys = ["cat/000.jpg", "dog/001.png", "eel/005.png", "not/there.jpg"]
    (tmp_path / "keys.txt").write_text("\n".join(keys))
    assert reshard(images, "--output", tmp_path / "out", f"--split-keys=validation={tmp_path}/keys.txt") == 0
    found = {decode_example(record)["image/filename"][0] for record in records_of(tmp_path / "out", "validation")}
    assert found == {key.encode() for key in keys[:3]}
    assert manifest(tmp_path / "out").records == manifest(images).records
    assert "no record   for at least 1 key of 4 in the list of validation" in capsys.readouterr().out


def test_rejects_new_splits_of_divided_datasets_without_take_splits(tmp_path: Path) -> None:
    numbered(tmp_path / "in", {"train": 50, "test": 20})
    with pytest.raises(UsageError, match=r"have splits already \(test, train\).*--take-splits test,train"):
        reshard(tmp_path / "in", "--output", tmp_path / "out", "--split=train=0.5,validation=0.5")
    flags = ("--take-splits=train", "--split=train=0.5,validation=0.5")
    assert reshard(tmp_path / "in", "--output", tmp_path / "out", *flags) == 0
    assert sorted(records_of(tmp_path / "out")) == sorted(records_of(tmp_path / "in", "train"))
    with pytest.raises(UsageError, match="no input has the split 'val'"):
        reshard(tmp_path / "in", "--output", tmp_path / "other", "--take-splits=val")


def test_divides_a_split_that_split_made_only_by_content(pictures: Path, tmp_path: Path) -> None:
    convert = ["convert", "images", f"--input={pictures}", f"--output={tmp_path}/made", "--split=train=0.8,test=0.2"]
    assert main(convert) == 0
    flags = ("--take-splits=train", "--split=train=0.5,validation=0.5")
    with pytest.raises(UsageError, match=r"were made by --split from hashes of file names.* Pass --key=content\."):
        reshard(tmp_path / "made", "--output", tmp_path / "out", *flags)
    assert reshard(tmp_path / "made", "--output", tmp_path / "out", *flags, "--key=content") == 0
    assert sorted(records_of(tmp_path / "out")) == sorted(records_of(tmp_path / "made", "train"))
    assert {"train", "validation"} == set(manifest(tmp_path / "out").splits)


@pytest.mark.parametrize("compression", ["gzip", pytest.param(None, marks=pytest.mark.matrix)])
def test_keeps_the_compression_unless_asked(compression: str | None, tmp_path: Path) -> None:
    numbered(tmp_path / "in", {"train": 90}, compression=compression)
    other = "none" if compression else "gzip"
    assert reshard(tmp_path / "in", "--output", tmp_path / "same") == 0
    assert reshard(tmp_path / "in", "--output", tmp_path / "other", f"--compression={other}") == 0
    assert manifest(tmp_path / "same").compression == compression
    assert manifest(tmp_path / "other").compression == (None if compression else "gzip")
    assert records_of(tmp_path / "same") == records_of(tmp_path / "other") == records_of(tmp_path / "in")


def test_compressed_shards_are_near_their_target_size(tmp_path: Path) -> None:
    texts = [{"text": f"line {number} of many that are alike, " * 20} for number in range(3000)]
    features = [Feature("text", "bytes", "string", encoding="utf8")]
    write_dataset(str(tmp_path / "in"), {"train": texts}, features, layout="text", shards=2)
    assert reshard(tmp_path / "in", "--output", tmp_path / "out", "--compression=gzip", "--shard-size=10kB") == 0
    sizes = [shard.bytes for shard in manifest(tmp_path / "out").splits["train"].shards]
    assert len(sizes) >= 4
    assert 8_000 < np.mean(sizes) < 12_500


def quarantine(folder: Path) -> int:
    """Damage one record of the first shard, and put it into quarantine; return its number."""
    dataset = open_dataset(str(folder))
    shard = dataset.manifest.splits["train"].shards[0]
    path, offset = folder / shard.name, int(dataset.index(shard).offsets[5])
    data = bytearray(path.read_bytes())
    data[offset + 14] ^= 1
    path.write_bytes(data)
    main(["verify", str(folder), "--quarantine"])
    return 5


def test_omits_and_counts_records_in_quarantine(tmp_path: Path) -> None:
    numbered(tmp_path / "in", {"train": 60})
    wanted = records_of(tmp_path / "in")
    del wanted[quarantine(tmp_path / "in")]
    assert reshard(tmp_path / "in", "--output", tmp_path / "out") == 0
    assert records_of(tmp_path / "out") == wanted
    assert manifest(tmp_path / "out").counts == {"quarantined": 1}
    assert_whole(tmp_path / "out")


def test_damage_aborts_the_run_or_is_skipped(tmp_path: Path) -> None:
    numbered(tmp_path / "in", {"train": 400})
    wanted = records_of(tmp_path / "in")
    shard = manifest(tmp_path / "in").splits["train"].shards[0]
    offset = int(open_dataset(str(tmp_path / "in")).index(shard).offsets[7])
    data = bytearray((tmp_path / "in" / shard.name).read_bytes())
    data[offset + 13] ^= 1
    (tmp_path / "in" / shard.name).write_bytes(data)
    with pytest.raises(BadRecordError, match=rf"{shard.name} at byte {offset}: .*checksum.*--on-bad-record=skip"):
        reshard(tmp_path / "in", "--output", tmp_path / "out")
    assert reshard(tmp_path / "in", "--output", tmp_path / "out", "--on-bad-record=skip", "--resume") == 0
    del wanted[7]
    assert records_of(tmp_path / "out") == wanted
    assert sum(manifest(tmp_path / "out").rejected.values()) == 1
    assert_whole(tmp_path / "out")


def test_carries_over_counts_of_rejected_and_re_encoded_inputs(tmp_path: Path) -> None:
    make_pictures(tmp_path / "in", 12)
    (tmp_path / "in" / "cat" / "bad.jpg").write_bytes(b"<no picture>")
    flags = ["--on-bad-record=skip", "--max-bad-records=1"]
    assert main(["convert", "images", f"--input={tmp_path}/in", f"--output={tmp_path}/d", *flags]) == 0
    assert reshard(tmp_path / "d", "--output", tmp_path / "out") == 0
    assert manifest(tmp_path / "out").counts == {"rejected_before": 1}
    assert manifest(tmp_path / "out").rejected == {}
    assert manifest(tmp_path / "out").converted == manifest(tmp_path / "d").converted
    assert_whole(tmp_path / "out")


def test_tokens_keep_their_tokenizer_and_counts_unless_a_record_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("To be\nor not to be\n" * 40)
    flags = ["--tokenizer=chars", "--sequence-length=16", "--pack"]
    assert main(["convert", "text", f"--input={tmp_path}/a.txt", f"--output={tmp_path}/d", *flags]) == 0
    shutil.copytree(tmp_path / "d", tmp_path / "e")
    assert reshard(tmp_path / "d", tmp_path / "e", "--output", tmp_path / "both", "--num-shards=2") == 0
    assert (tmp_path / "both" / "vocab.json").read_bytes() == (tmp_path / "d" / "vocab.json").read_bytes()
    before, both = (manifest(tmp_path / name) for name in ("d", "both"))
    assert both.options["tokenizer"] == before.options["tokenizer"]
    assert "tokens" in before.counts
    assert both.counts == {name: 2 * count for name, count in before.counts.items()}
    assert both.real_token_share == before.real_token_share
    assert_whole(tmp_path / "both")
    shard = tmp_path / "d" / before.splits["train"].shards[0].name
    data = bytearray(shard.read_bytes())
    data[13] ^= 1
    shard.write_bytes(data)
    flags = ["--on-bad-record=skip", "--max-bad-records=1"]
    assert reshard(tmp_path / "d", "--output", tmp_path / "out", *flags) == 0
    assert sum(manifest(tmp_path / "out").rejected.values()) == 1
    assert manifest(tmp_path / "out").counts == {}
    assert_whole(tmp_path / "out")


@pytest.mark.parametrize("compression", ["", "GZIP"])
def test_makes_a_dataset_of_files_of_other_programs(compression: str, images: Path, tmp_path: Path) -> None:
    parts: dict[str, list[dict[str, Any]]] = {
        "train-00000-of-00002": [],
        "train-00001-of-00002": [],
        "validation-00000-of-00001": [],
    }
    for number, record in enumerate(records_of(images)):
        example = {name: list(values) for name, values in decode_example(record).items()}
        list(parts.values())[number % 3].append(example)
    files = write_files(tmp_path / "old", parts, compression)
    wanted = [record.numpy() for record in tf.data.TFRecordDataset([str(files / n) for n in parts], compression)]
    labels = images / "labels.txt"
    assert reshard(files / "*-of-*", "--output", tmp_path / "out", "--labels", labels) == 0
    assert records_of(tmp_path / "out") == wanted
    found = manifest(tmp_path / "out")
    assert {name: split.records for name, split in found.splits.items()} == {"train": 60, "validation": 30}
    assert found.layout == "imagenet"
    assert {f.name: f for f in found.features} == {f.name: f for f in manifest(images).features}
    assert sum(split.decoded_bytes for split in found.splits.values()) > 0
    assert_whole(tmp_path / "out")
    assert len(RecordSource(str(tmp_path / "out"), "train")[0]["image"].shape) == 3


@pytest.mark.parametrize("kind", ["dataset", pytest.param("files", marks=pytest.mark.matrix)])
def test_two_workers_write_the_same_bytes(kind: str, images: Path, tmp_path: Path) -> None:
    flags = ["--num-shards=6", "--shuffle", "--seed=1", "--split=train=0.5,test=0.5"]
    source = images
    if kind == "files":
        examples = [decode_example(record) for record in records_of(images)[:30]]
        source = write_files(tmp_path / "in", {"a": [{name: list(x) for name, x in one.items()} for one in examples]})
    assert reshard(source, "--output", tmp_path / "1", *flags) == 0
    assert reshard(source, "--output", tmp_path / "2", *flags, "--workers=2") == 0
    assert digests(tmp_path / "1") == digests(tmp_path / "2")


def test_plans_overwrites_and_resumes(images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    assert reshard(images, "--output", out, "--num-shards=4", "--dry-run") == 0
    assert "90 records" in capsys.readouterr().out
    assert not out.exists()
    assert reshard(images, "--output", out, "--num-shards=4") == 0
    before = digests(out)
    with pytest.raises(OutputError, match="holds a dataset"):
        reshard(images, "--output", out, "--num-shards=4")
    assert reshard(images, "--output", out, "--num-shards=4", "--resume") == 0
    assert digests(out) == before
    with pytest.raises(OutputError, match="num_shards = 4, and now it is 2"):
        reshard(images, "--output", out, "--num-shards=2", "--resume")
    assert reshard(images, "--output", out, "--num-shards=2", "--overwrite") == 0
    assert len(manifest(out).splits["train"].shards) == 2
    assert_whole(out)


def test_rejects_invalid_inputs_and_conflicting_options(pictures: Path, images: Path, tmp_path: Path) -> None:
    files = write_files(tmp_path / "in", {"a": [{"x": [1]}]})
    out = tmp_path / "out"
    link, parent = tmp_path / "link", tmp_path / "parent"
    link.symlink_to(images)
    numbered(parent / "dataset", {"train": 3})
    for argv, words in (
        ((images, files / "a"), "has no manifest.json, and .* is a dataset"),
        ((images, images), "comes twice"),
        ((images, f"{images}/"), "comes twice"),
        ((images, images / ".." / images.name), "comes twice"),
        ((images, link), "comes twice"),
        ((files, files / ".." / "in" / "a"), "is in two inputs"),
        ((parent,), "parent/dataset in it is a dataset. Name datasets one by one"),
        ((parent / "**",), "parent/dataset in it is a dataset"),
        ((images, "--key=record"), "--key=record is for making splits"),
        ((images, "--key=imagefilename", "--split=a=0.5,b=0.5"), "the datasets have no such feature"),
        ((images, f"--labels={images}/labels.txt"), "--labels is for TFRecords of other programs"),
        ((files, "--merge-labels"), "--merge-labels is for datasets"),
        ((files, "--raw=y=uint8:3"), "has no feature 'y'"),
        ((files, "--raw=x=uint99:3"), "does not describe an array"),
        ((files, "--feature=y=int"), "--feature: .* has no feature 'y'"),
        ((files, "--feature=x=float:4xN"), "declares no feature"),
        ((files, f"--feature=x=float:{'9' * 5000}"), "declares no feature"),
        ((files, "--feature=x=int", "--raw=x=uint8:3"), "--feature x: this feature is described twice"),
        ((files, "--raw=x=uint8:3", "--raw=x=uint8:4"), "--raw x: this feature is described twice"),
        ((files, "--label-map=y"), "--label-map: .* has no feature 'y'"),
        ((files, "--raw=x=uint8:3", "--label-map=x"), "--raw describes this feature, too"),
        ((images, "--label-map=image/encoded"), "--label-map is for TFRecords of other programs"),
        ((images, "--append"), "unknown flag --append"),
    ):
        with pytest.raises(UsageError, match=words):
            reshard(*argv, "--output", out)
    with pytest.raises(UsageError, match="is inside the input"):
        reshard(images, "--output", images / "out")
    with pytest.raises(SourceError, match="does not exist"):
        reshard(tmp_path / "nothing", "--output", out)
    assert not out.exists()
    assert reshard(images, "--output", out) == 0
    with pytest.raises(OutputError, match="`tpudata reshard` wrote it"):
        convert_images(["--input", str(pictures), "--output", str(out), "--append"])


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Jobs:
    folder = tmp_path_factory.mktemp("killed")
    inputs = [
        numbered(folder / "a", {"train": 450}),
        numbered(folder / "b", {"train": 450}, compression="gzip", first=900),
    ]
    return Jobs("beam_jobs.reshard", *map(str, inputs), "--num-shards=30", "--compression=none")


def test_keeps_bytes_after_a_kill(jobs: Jobs, tmp_path: Path) -> None:
    jobs.run(tmp_path / "whole")
    whole = digests(tmp_path / "whole")
    kills = 0
    for shards in (0, 3, 20):
        pid, killed = jobs.run(tmp_path / "out", "--resume", kill_after=0.1, shards=shards)
        assert_nobody_is_left(pid)
        kills += killed
    jobs.run(tmp_path / "out", "--resume")
    assert kills
    assert digests(tmp_path / "out") == whole

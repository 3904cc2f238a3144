"""`WriteTFRecordShards` in a user's pipeline, end to end."""

from __future__ import annotations

import io
import itertools
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import apache_beam as beam
import numpy as np
import pytest
from apache_beam.transforms.window import FixedWindows, TimestampedValue
from PIL import Image

from beam_jobs import WriteTFRecordShards
from tests.beam_jobs.examples.flowers import SPECIES, flower, write
from tests.beam_jobs.pipelines import local_pipeline, run_pipeline
from tests.helpers import forked
from tests.helpers.label_maps import PALETTE, png_of
from tests.helpers.pictures import digests
from tpudata import CentreCrop, Images, RecordSource, as_numpy, make_input_fn
from tpudata.cli import main
from tpudata.errors import BadRecordError, FeatureError, OutputError, SourceError, TpudataError, UsageError
from tpudata.format import Feature, Manifest, open_dataset
from tpudata.storage import LocalStorage, RequestLimits, held_request_limits, request_limits

ROOT = Path(__file__).parents[3]
COUNT = 300


@pytest.fixture(scope="module")
def flowers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("flowers") / "out"
    write(range(COUNT), output, flower, labels=SPECIES, split="train=0.8,test=0.2", shard_size="4kB")
    return output


def test_writes_each_example_to_exactly_one_record(flowers: Path) -> None:
    dataset = open_dataset(str(flowers))
    assert dataset.labels() == SPECIES
    found: dict[int, dict[str, Any]] = {}
    for split in ("train", "test"):
        for example in dataset.examples(split):
            (number,) = example["number"]
            assert isinstance(number, int)
            assert number not in found
            found[number] = example
    assert found.keys() == set(range(COUNT))
    for number, example in found.items():
        _, put_in = flower(number)
        assert example == {
            "measured": put_in["measured"].ravel().tolist(),
            "picture": [put_in["picture"].tobytes()],
            "seen": put_in["seen"].tolist(),
            "name": [put_in["name"].encode()],
            "number": [number],
            "label": [number % 3],
        }


def test_infers_the_schema_and_cuts_shards(flowers: Path) -> None:
    manifest = open_dataset(str(flowers)).manifest
    assert manifest.features == (
        Feature("label", "int64", "int64", num_classes=3),
        Feature("measured", "float", "float32", (2, 3)),
        Feature("name", "bytes", "string", encoding="utf8"),
        Feature("number", "int64", "int64"),
        Feature("picture", "bytes", "uint8", (4, 4), "raw"),
        Feature("seen", "int64", "int64", (None,)),
    )
    shards = manifest.split("train").shards
    assert len(shards) >= 10
    assert all(abs(shard.bytes - 4000) <= 0.15 * 4000 for shard in shards)
    assert not [name for name in digests(flowers) if "/." in f"/{name}"]


def test_order_and_workers_do_not_change_the_bytes(flowers: Path, tmp_path: Path) -> None:
    said: dict[str, Any] = {"labels": SPECIES, "split": "train=0.8,test=0.2", "shard_size": 4000}
    write(np.random.default_rng(0).permutation(COUNT).tolist(), tmp_path / "two", flower, workers=2, **said)
    assert digests(tmp_path / "two") == digests(flowers)


def test_make_input_fn_reads_the_dataset(tmp_path: Path) -> None:
    pytest.importorskip("tensorflow")
    import tpudata

    def fixed(number: int) -> dict[str, Any]:
        return {
            "measured": np.full((2, 3), number, np.float32),
            "pixels_raw": np.eye(3, dtype=np.uint8),
            "label": number % 3,
        }

    write(range(50), tmp_path / "out", fixed, labels=SPECIES)
    batches = list(tpudata.make_input_fn(tmp_path / "out", "train", training=False)({"batch_size": 20}))
    rows: dict[int, int] = {}
    for features, labels in batches:
        assert features["measured"].shape == (20, 2, 3)
        assert features["pixels"].dtype == "uint8"
        real = features["weights"].numpy() == 1
        measured = features["measured"].numpy()[real]
        assert (measured == measured[:, :1, :1]).all()
        rows.update(zip(measured[:, 0, 0].astype(int).tolist(), labels.numpy()[real].tolist(), strict=True))
    assert rows == {number: number % 3 for number in range(50)}


# TFDS 4.9 reads protobuf descriptors in a way that protobuf 6 warns of.
@pytest.mark.filterwarnings(r"ignore:label\(\) is deprecated:DeprecationWarning")
def test_tfds_reads_the_dataset(flowers: Path) -> None:
    tfds = pytest.importorskip("tensorflow_datasets")
    rows = list(tfds.builder_from_directory(str(flowers)).as_dataset("test"))
    assert len(rows) == open_dataset(str(flowers)).manifest.split("test").records
    for row in rows[:20]:
        _, put_in = flower(int(row["number"]))
        for name in ("measured", "picture", "seen"):
            assert np.array_equal(row[name].numpy(), put_in[name])
        assert row["name"].numpy().decode() == put_in["name"]
        assert SPECIES[int(row["label"])] == put_in["label"]


def test_stores_bytes_of_any_type(tmp_path: Path) -> None:
    kinds = (bytes, bytearray, np.bytes_)
    elements = [(str(number), {"x": kind(b"a\0b"), "y": [kind(b"c")]}) for number, kind in enumerate(kinds)]
    write(elements, tmp_path / "out")
    dataset = open_dataset(str(tmp_path / "out"))
    assert [(feature.kind, feature.dtype) for feature in dataset.manifest.features] == [("bytes", "string")] * 2
    assert list(dataset.examples("train")) == [{"x": [b"a\0b"], "y": [b"c"]}] * 3


def test_splits_by_name_function_or_shares(tmp_path: Path) -> None:
    def sizes(name: str, split: Any) -> dict[str, int]:
        write(({"n": n} for n in range(100)), tmp_path / name, split=split)
        return {split: part.records for split, part in open_dataset(str(tmp_path / name)).manifest.splits.items()}

    assert sizes("name", "validation") == {"validation": 100}
    assert sizes("function", lambda example: "even" if example["n"] % 2 == 0 else "odd") == {"even": 50, "odd": 50}
    shares = sizes("shares", "train=0.7,test=0.3")
    assert shares.keys() == {"train", "test"}
    assert 50 < shares["train"] < 90
    with pytest.raises(UsageError, match="split name 'split 0'"):
        sizes("bad", lambda example: f"split {example['n']}")


def test_keeps_all_equal_examples_in_one_split(tmp_path: Path) -> None:
    numbers = [number % 40 for number in range(100)]
    write(({"n": n} for n in numbers), tmp_path / "out", split="train=0.5,test=0.5", num_shards=3)
    found: Counter[Any] = Counter()
    for split in ("train", "test"):
        order = [example["n"][0] for example in open_dataset(str(tmp_path / "out")).examples(split)]
        assert not set(order) & set(found)
        # Equal ones stand side by side.
        assert len([1 for one, other in itertools.pairwise(order) if one != other]) + 1 == len(set(order))
        found.update(order)
    assert found == Counter(numbers)


@pytest.mark.parametrize(
    ("elements", "key"), [([(7, {"n": 1}), ("7", {"n": 2})], None), ([{"n": 1}, {"n": 1}], lambda x: x["n"])]
)
def test_rejects_two_examples_with_one_key(tmp_path: Path, elements: Any, key: Any) -> None:
    with pytest.raises(SourceError, match=r"have the same key '[17]'"):
        write(elements, tmp_path / "out", key=key)
    assert not (tmp_path / "out" / "manifest.json").exists()


def test_pairs_and_a_key_function_give_the_same_bytes(tmp_path: Path) -> None:
    write(((f"k{n}", {"n": n}) for n in range(90)), tmp_path / "pairs", num_shards=4)
    write(({"n": n} for n in range(90)), tmp_path / "function", num_shards=4, key=lambda example: f"k{example['n']}")
    assert digests(tmp_path / "pairs") == digests(tmp_path / "function")


@pytest.mark.parametrize(
    ("elements", "said", "kind", "message"),
    [
        ([], {}, SourceError, "no examples"),
        ([3], {}, SourceError, "got 3, int"),
        ([{}], {}, FeatureError, "no features"),
        ([("a", {"x": 1}), ("b", {"x": 1.5})], {}, FeatureError, "Feature 'x': record "),
        # tests/beam_jobs/examples/test_values.py and test_rules.py have all that a single example may not have.
        ([{"x": np.array([2**63], np.uint64)}], {}, FeatureError, "does not fit int64"),
        (
            [{"x": b"text"}],
            {"features": [Feature("x", "bytes", "uint8", (None, None, 3), "image")]},
            FeatureError,
            "Feature 'x': it does not fit the schema (got unknown image format",
        ),
        ([{"label": "oak"}], {"labels": SPECIES}, BadRecordError, "oak"),
        ([{"x": 1}], {"num_shards": 2}, UsageError, "--num-shards is 2"),
        ([(None, {"x": 1})], {}, SourceError, "got None"),
        ([("k", {"x": 1})], {"key": str}, UsageError, "Pass one of them"),
    ],
)
def test_rejected_examples_leave_no_file(
    tmp_path: Path, elements: list[Any], said: Any, kind: type[TpudataError], message: str
) -> None:
    with pytest.raises(kind, match=re.escape(message)):
        write(elements, tmp_path / "out", **said)
    assert digests(tmp_path) == {}


def test_unknown_labels_raise_bad_record_error_in_any_pipeline(tmp_path: Path) -> None:
    # Without `run_pipeline`, which looks for our errors in what Beam makes of them.
    pipeline = beam.Pipeline(runner="FnApiRunner")
    _ = pipeline | beam.Create([{"label": "eel"}]) | WriteTFRecordShards(tmp_path / "out", labels=["cat"])
    with pytest.raises(BadRecordError, match="unknown label: 'eel'") as caught:
        pipeline.run()
    assert caught.value.source == "{'label': 'eel'}"


def test_rejects_conflicting_bundles_before_it_writes_a_shard(tmp_path: Path) -> None:
    pipeline = local_pipeline()
    parts = [pipeline | str(value) >> beam.Create([(str(value), {"x": value})]) for value in (1, 1.5)]
    _ = parts | beam.Flatten() | WriteTFRecordShards(tmp_path / "out")
    with pytest.raises(FeatureError, match="Feature 'x': record '1"):
        run_pipeline(pipeline)
    assert digests(tmp_path) == {}


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"shard_size": "1XB"}, "'1XB': not a size"),
        ({"shard_size": 0}, "expected 1 byte or more"),
        ({"shard_size": 1.5}, "got 1.5"),
        ({"num_shards": 0}, "num_shards: out of range (got 0"),
        ({"num_shards": 3, "shards_multiple_of": 2}, "not a multiple of 2"),
        ({"shards_multiple_of": True}, "shards_multiple_of: not a whole number (got True"),
        ({"seed": "1"}, "seed: not a whole number (got '1'"),
        ({"split": "train=0.5"}, "got 0.5"),
        ({"split": "a b"}, "split name 'a b'"),
        ({"features": 3}, "features: not a sequence of tpudata.format.Feature (got 3)"),
        ({"labels": 3}, "labels: not class names (got 3"),
        ({"split": 3}, "split: not a function of an example (got 3"),
        ({"key": "n"}, "key: not a function of an example (got 'n'"),
        ({"label": 3}, "label: not the name of a feature (got 3"),
        ({"labels": "cat"}, "labels: not class names"),
        ({"labels": {"cat", "dog"}}, "labels: not class names"),
        ({"labels": (name for name in ("cat", "dog"))}, "labels: not class names"),
        ({"labels": ["a", "a"]}, "missing or repeated"),
        ({"labels": []}, "expected 1 or more distinct names"),
        ({"features": []}, "features is empty"),
        ({"features": ["x"]}, "tpudata.format.Feature"),
        ({"features": [Feature("x", "int64", "int64")] * 2}, "'x' appears twice"),
        ({"features": [Feature("x", "int64", "int64")], "labels": ["a"]}, "not an int64 label of 1 class, as"),
        ({"resume": True, "overwrite": True}, "choose one"),
        ({"defaults": ["x"]}, "defaults: not a dict"),
        ({"defaults": {"x": None}}, "defaults: Feature 'x': None"),
        ({"defaults": {"x": {}}}, "defaults: Feature 'x': a dict without features"),
        (
            {"defaults": {"y": 1}, "features": [Feature("x", "int64", "int64")]},
            "defaults: Feature 'y': it is not in the",
        ),
        (
            {"defaults": {"x": 1.5}, "features": [Feature("x", "int64", "int64")]},
            "defaults: Feature 'x': it does not fit",
        ),
        ({"defaults": {"label": "eel"}, "labels": ["cat"]}, "defaults: rejected: unknown label: 'eel'"),
    ],
)
def test_constructor_rejects_wrong_arguments(tmp_path: Path, said: Any, message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        WriteTFRecordShards(tmp_path / "out", **said)


@pytest.mark.parametrize("again", ["one", "one/", "other/../one"])
def test_rejects_two_transforms_with_the_same_output(tmp_path: Path, again: str) -> None:
    pipeline = local_pipeline()
    examples = pipeline | beam.Create([{"n": 1}])
    examples | "one" >> WriteTFRecordShards(tmp_path / "one")
    examples | "other" >> WriteTFRecordShards(tmp_path / "other")
    with pytest.raises(UsageError, match=r"two transforms of the pipeline write to .*one"):
        examples | "again" >> WriteTFRecordShards(f"{tmp_path}/{again}")


def test_rejects_a_folder_with_other_files(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("mine")
    examples = [{"n": n} for n in range(20)]
    with pytest.raises(OutputError, match=r"mine\.txt"):
        write(examples, tmp_path / "out")
    (tmp_path / "out" / "mine.txt").unlink()
    write(examples, tmp_path / "out", num_shards=4)
    with pytest.raises(OutputError, match="holds a dataset"):
        write(examples, tmp_path / "out")
    # An error in the new examples comes out before the old dataset goes.
    before = digests(tmp_path / "out")
    with pytest.raises(FeatureError):
        write([{"n": 1}, {"n": 1.5}], tmp_path / "out", overwrite=True)
    assert {name: digests(tmp_path / "out").get(name) for name in before} == before
    write(examples, tmp_path / "out", num_shards=2, overwrite=True)
    write(examples, tmp_path / "fresh", num_shards=2)
    assert digests(tmp_path / "out") == digests(tmp_path / "fresh")


def test_resume_keeps_whole_shards_and_notices_changed_examples(tmp_path: Path) -> None:
    output = tmp_path / "out"
    write(((n, {"n": n}) for n in range(60)), output, num_shards=5)
    whole = digests(output)
    times = {path.name: path.stat().st_mtime_ns for path in output.glob("*.tfrecord")}
    (output / "manifest.json").unlink()
    (output / "train-00001-of-00005.tfrecord").unlink()
    (output / ".tpudata-spool-old").write_bytes(b"left by a killed run")
    write(((n, {"n": n}) for n in reversed(range(60))), output, num_shards=5, resume=True)
    assert digests(output) == whole
    kept = [path.name for path in output.glob("*.tfrecord") if path.stat().st_mtime_ns == times[path.name]]
    assert len(kept) == 4
    (output / "manifest.json").unlink()
    # The same keys and sizes, one other value.
    write(((n, {"n": n if n != 30 else 31}) for n in range(60)), output, num_shards=5, resume=True)
    found = Counter(example["n"][0] for example in open_dataset(str(output)).examples("train"))
    assert found[31] == 2
    assert found[30] == 0


def test_returns_the_manifest(tmp_path: Path) -> None:
    pipeline = local_pipeline()
    timed = pipeline | beam.Create(range(30)) | beam.Map(lambda n: TimestampedValue({"n": n}, n))
    # Windows of the user's own do not cut the dataset up.
    manifests = timed | beam.WindowInto(FixedWindows(5)) | WriteTFRecordShards(tmp_path / "out")
    _ = manifests | beam.Map(lambda manifest: (tmp_path / "seen.json").write_bytes(manifest.to_bytes()))
    run_pipeline(pipeline)
    seen = Manifest.from_bytes((tmp_path / "seen.json").read_bytes())
    assert seen == open_dataset(str(tmp_path / "out")).manifest
    assert seen.records == 30


def test_the_example_of_the_docs_runs(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "convert" / "write_tfrecord_shards.md").read_text()
    (program,) = re.findall(r"^```python\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)
    assert len([line for line in program.splitlines() if line]) <= 15
    (tmp_path / "program.py").write_text(program)
    done = forked.run("program.py", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    dataset = open_dataset(str(tmp_path / "flowers"))
    assert dataset.manifest.records == 1000
    assert dataset.manifest.feature("measured") == Feature("measured", "float", "float32", (4,))


# 120 MB of records that are made as they are asked for.
LARGE = r"""
import re, sys
from pathlib import Path
import apache_beam as beam
import numpy as np
from beam_jobs import WriteTFRecordShards
from tests.beam_jobs.pipelines import local_pipeline, run_pipeline

def example(number):
    return number, {"data": np.random.default_rng(number).bytes(100_000)}

pipeline = local_pipeline()
_ = pipeline | beam.Create(range(1200)) | beam.Map(example) | WriteTFRecordShards(sys.argv[1], shard_size="20MB")
run_pipeline(pipeline)
# The peak of this program; ru_maxrss would count the process that started it, too.
print(re.search(r"VmHWM:\s*(\d+) kB", Path("/proc/self/status").read_text())[1])
"""


@pytest.mark.matrix
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_writes_120_megabytes_within_270_megabytes_of_memory(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LARGE, str(tmp_path / "out")],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr
    assert open_dataset(str(tmp_path / "out")).manifest.split("train").bytes > 120_000_000
    # Beam alone takes 190 MB.
    assert int(done.stdout) * 1024 < 270_000_000


def test_steps_use_the_request_limits_of_the_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = set()
    create = LocalStorage.create

    def look(self: LocalStorage, path: str, **options: bool) -> Any:
        seen.add((Path(path).suffix, request_limits()))
        return create(self, path, **options)

    monkeypatch.setattr(LocalStorage, "create", look)
    before = request_limits()
    with held_request_limits(RequestLimits(read_threads=5, retry_seconds=9)):
        pipeline = local_pipeline()
        _ = pipeline | beam.Create([{"n": 1}]) | WriteTFRecordShards(tmp_path / "out")
        run_pipeline(pipeline)
    assert (".tfrecord", RequestLimits(read_threads=5, retry_seconds=9)) in seen
    assert {limits for _, limits in seen} == {RequestLimits(read_threads=5, retry_seconds=9)}
    assert request_limits() is before


def scene(number: int) -> tuple[str, dict[str, Any]]:
    random = np.random.default_rng(number)
    height, width = 10 + number % 3, 12
    classes = random.integers(0, 21, (height, width))
    file = io.BytesIO()
    Image.fromarray(random.integers(0, 256, (height, width, 3), np.uint8)).save(file, "PNG")
    return f"scene-{number}", {
        "image/encoded": file.getvalue(),
        "image/segmentation/class/encoded": png_of(classes, 8, PALETTE) if number % 2 else classes,
        "depth": classes * 1000,
        "number": number,
    }


def test_all_readers_decode_the_same_label_maps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name, short = "image/segmentation/class/encoded", "image/segmentation/class"
    schema = [
        Feature("image/encoded", "bytes", "uint8", (None, None, 3), "image"),
        Feature(name, "bytes", "uint8", (None, None, 1), "label_map"),
        Feature("depth", "bytes", "uint16", (None, None, 1), "label_map"),
        Feature("number", "int64", "int64"),
    ]
    first, second = tmp_path / "first", tmp_path / "second"
    write(range(12), first, scene, features=schema, num_shards=2)
    assert main(["reshard", str(first), f"--output={second}", "--num-shards=3"]) == 0
    for folder in (first, second):
        assert open_dataset(str(folder)).manifest.features == tuple(schema)
        assert main(["verify", str(folder), "--decode"]) == 0
        assert main(["inspect", str(folder)]) == 0
        assert "(label_map)" in capsys.readouterr().out
        found = {}
        for record in RecordSource(folder, "train"):
            found[int(record["number"])] = record[short], record["depth"]
        for number in range(12):
            _, example = scene(number)
            classes = example["depth"] // 1000
            np.testing.assert_array_equal(found[number][0][..., 0], classes)
            np.testing.assert_array_equal(found[number][1][..., 0], example["depth"])
            assert [array.dtype for array in found[number]] == [np.uint8, np.int32]
    input_fn = make_input_fn(first, "train", training=False, images=Images(crop=CentreCrop(10, fraction=1.0)))
    for batch in as_numpy(input_fn, 12):
        np.testing.assert_array_equal(batch[short].astype(int) * 1000, batch["depth"])
    assert main(["bench", str(first), "--split=train", "--batch-size=4", "--seconds=0.05", "--image-size=8x8"]) == 0
    assert "decode, resize" in capsys.readouterr().out


def sight(number: int) -> tuple[str, dict[str, Any]]:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    random = np.random.default_rng(number)
    size = {"height": 2 + number % 3, "width": 3 + number % 4}
    return f"sight-{number}", {
        "image": {"encoded": random.integers(0, 256, (*size.values(), 3), np.uint8), **size},
        "embedding": random.normal(size=4).astype(ml_dtypes.bfloat16),
        "age": number if number % 2 else None,
        "class": {"label": SPECIES[number % 3]} if number else {"label": None},
    }


@pytest.mark.parametrize("declared", [True, False])
def test_stores_dicts_defaults_bfloat16_and_arrays_of_any_size(tmp_path: Path, declared: bool) -> None:
    features = [
        Feature("image/encoded", "bytes", "uint8", (None, None, 3), "image"),
        Feature("image/height", "int64", "int64"),
        Feature("image/width", "int64", "int64"),
        Feature("embedding", "float", "float32", (4,)),
        Feature("age", "int64", "int64"),
        Feature("class/label", "int64", "int64"),
    ]
    said: dict[str, Any] = {
        "labels": SPECIES,
        "label": "class/label",
        "defaults": {"age": -1, "class": {"label": "rose"}},
    }

    def example(number: int) -> tuple[str, dict[str, Any]]:
        key, value = sight(number)
        if not declared:
            del value["image"]["encoded"]
        return key, value

    output = tmp_path / "out"
    write(range(12), output, example, features=features if declared else None, **said)
    assert main(["verify", str(output), "--decode"]) == 0
    found = {int(record["image/height"]) * 100 + int(record["age"]): record for record in RecordSource(output, "train")}
    for number in range(12):
        _, value = sight(number)
        age = -1 if value["age"] is None else value["age"]
        record = found[value["image"]["height"] * 100 + age]
        assert record["image/width"] in (3, 4, 5, 6)
        if age >= 0:
            assert record["embedding"].tolist() == value["embedding"].astype(np.float32).tolist()
            assert record["class/label"] == number % 3
            if declared:
                np.testing.assert_array_equal(record["image"], value["image"]["encoded"])


def test_suggests_image_encoding_for_arrays_with_two_varying_dimensions(tmp_path: Path) -> None:
    elements = [(str(n), {"x": np.zeros((n, n + 1, 3), np.uint8)}) for n in (1, 2)]
    with pytest.raises(FeatureError, match=r"varies \(None\) in more than one dimension.* encoding=\"image\""):
        write(elements, tmp_path / "out")

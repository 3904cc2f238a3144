"""TensorFlow, Beam and the commands on gs://, with and without passing faults."""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from pathlib import Path

import pytest

from scripts.fake_gcs import FakeGcs, Fault
from tests.gcs.child import Child, ChildError, digest, noise
from tests.gcs.test_every_request import KINDS

SIZE = 700_000
# TensorFlow renews tokens before they expire, and treats an expired one as wrong.
OF_TENSORFLOW = ("429", "500", "503", "reset", "lost", "truncated", "slow", "cut")
FAST = {"none", "503", "cut"}


def whole(*kinds: str, fast: Collection[str] = FAST) -> list[object]:
    """Parameters of which scripts/test takes the fast part, and scripts/test_gcs all."""
    return [kind if kind in fast else pytest.param(kind, marks=pytest.mark.matrix) for kind in kinds]


def break_all(store: FakeGcs, kind: str, *operations: str, count: int = 2) -> None:
    """Lets the first `count` requests of each operation meet a fault."""
    given = {"cut": ("part",), "truncated": ("read",)}.get(kind, operations)
    store.faults.add(*(Fault(kind, operation, count=count, seconds=0.3) for operation in given))


# It waits a second before each retry; test_training_with_faults_writes_the_same_checkpoint covers 503 at all requests.
@pytest.mark.cases(1)
@pytest.mark.parametrize("kind", whole("none", *OF_TENSORFLOW, fast=("none", "cut")))
def test_tensorflow_keeps_files_despite_faults(store: FakeGcs, child: Child, kind: str) -> None:
    if kind != "none":
        break_all(store, kind, "upload", "part", "read", "stat", "list", "copy", "delete", count=1)
    child("tf_write", "gs://data/d/x", SIZE, 7)
    assert store.buckets["data"]["d/x"].data == noise(SIZE, 7)
    assert child("tf_read", "gs://data/d/x") == digest(noise(SIZE, 7))
    child("tf_rename", "gs://data/d/x", "gs://data/d/y")
    assert child("tf_list", "gs://data/d") == ["y"]
    child("tf_remove", "gs://data/d/y")
    assert not [name for name in store.buckets["data"] if not name.endswith("/")]
    assert child("tf_checkpoint", "gs://data/model/c-1", SIZE, 8) == digest(noise(4 * SIZE, 8))
    assert bool(store.faults.met) == (kind != "none")


@pytest.mark.parametrize("kind", whole("none", *OF_TENSORFLOW, "expired", fast=("none", "503")))
def test_beam_keeps_files_despite_faults(store: FakeGcs, child: Child, kind: str) -> None:
    if kind != "none":
        break_all(store, kind, "upload", "part", "read", "list", count=1)
    assert child("beam_files", "gs://data/beam/x", SIZE, 9) == digest(noise(SIZE, 9))
    assert bool(store.faults.met) == (kind != "none")


def test_beam_stores_no_damaged_upload(store: FakeGcs, child: Child) -> None:
    store.faults.add(Fault("corrupt", "part"))
    with pytest.raises(ChildError, match="400"):
        child("beam_files", "gs://data/beam/x", SIZE, 9)
    assert "beam/x" not in store.buckets["data"]


@pytest.mark.parametrize("operation", ["part", pytest.param("read", marks=pytest.mark.matrix)])
def test_a_damaged_checkpoint_fails_its_checksum(store: FakeGcs, child: Child, operation: str) -> None:
    store.faults.add(Fault("corrupt", operation, "*.data-0*"))
    with pytest.raises(ChildError, match="Checksum does not match"):
        child("tf_checkpoint", "gs://data/model/c-1", SIZE, 8)


@pytest.mark.matrix
def test_doctor_checks_a_dataset_on_gs(store: FakeGcs, child: Child, pictures: dict[str, bytes]) -> None:
    fill_converted(store, child, pictures, "images", "out")
    printed = done(child, "doctor", "--data", "gs://data/out", "--time-limit", "200")
    assert "nobody@test.iam.gserviceaccount.com" in printed
    assert re.search(r"train \d+ records", printed)
    code, printed = child("command", "doctor", "--data", "gs://none/out", "--time-limit", "200")
    assert (code, "no bucket none" in printed or "gs://none/out" in printed) == (1, True), printed


@pytest.mark.parametrize("path", ["gs://none/x", "gs://secret/x"])
def test_tensorflow_names_the_file_it_cannot_read(store: FakeGcs, child: Child, path: str) -> None:
    store.bucket("secret")
    store.denied.add("secret")
    with pytest.raises(ChildError, match=path):
        child("tf_read", path)


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """Some digits as files of a bucket, and a text."""
    from PIL import Image
    from sklearn.datasets import load_digits

    folder: Path = tmp_path_factory.mktemp("pictures")
    data = load_digits()
    for number in range(40):
        path = folder / "in" / str(data.target[number]) / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray((data.images[number] * 15).astype("uint8")).save(path)
    text = folder / "text" / "a.txt"
    text.parent.mkdir()
    text.write_text("".join(f"line {number} of some words\n" for number in range(150)))
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*.*")}


def fill(store: FakeGcs, files: dict[str, bytes]) -> None:
    for name, data in files.items():
        store.put("data", name, data)


def fill_converted(store: FakeGcs, child: Child, files: dict[str, bytes], what: str, prefix: str) -> None:
    """Put files and what a conversion makes of them, which runs once for all tests."""
    fill(store, files)
    if what not in DONE:
        convert(child, what, f"gs://data/{prefix}")
        DONE[what] = output(store, f"{prefix}/")
    for name, data in DONE[what].items():
        store.put("data", f"{prefix}/{name}", data)


def fill_trained(store: FakeGcs, child: Child, files: dict[str, bytes]) -> None:
    """Put a dataset and a model of two steps, which is trained once for all tests."""
    fill_converted(store, child, files, "images", "out")
    if "trained" not in DONE:
        done(child, *TRAIN, "--model-dir", "gs://data/model", "--train-steps", "2", "--mode", "train")
        DONE["trained"] = output(store, "model/")
    for name, data in DONE["trained"].items():
        store.put("data", f"model/{name}", data)


def fed(child: Child) -> str:
    """Return what an epoch of gs://data/out is without a fault; it is the same in all tests, and fed once."""
    if "fed" not in FED:
        FED["fed"] = child("feed", "gs://data/out")
    return FED["fed"]


def output(store: FakeGcs, prefix: str) -> dict[str, bytes]:
    """What lies below a prefix, by the rest of its name."""
    objects = store.buckets["data"]
    return {name.removeprefix(prefix): objects[name].data for name in sorted(objects) if name.startswith(prefix)}


# The datasets of CONVERSIONS and the model of TRAIN, by the names of files; no file of a dataset names the folder that it is in.
DONE: dict[str, dict[str, bytes]] = {}
FED: dict[str, str] = {}
CONVERSIONS = {
    "images": ["convert", "images", "--input", "gs://data/in", "--shard-size", "3kB", "--split", "train=0.8,validation=0.2"],
    "text": [
        *("convert", "text", "--input", "gs://data/text", "--shard-size", "4kB"),
        *("--tokenizer", "bytes", "--sequence-length", "32", "--pack"),
    ],
}  # fmt: skip
TRAIN = ["train", "--model", "mnist_cnn", "--data", "gs://data/out", "--batch-size", "16"]
OF_COMMANDS = ("429", "500", "503", "reset", "lost", "truncated", "slow", "cut", "expired", "corrupt")


FAST_CONVERSIONS = {("images", "lost"), ("text", "503")}
FEED = ("read", "stat", "list")


CONVERTED = [
    pytest.param(what, kind, marks=[] if (what, kind) in FAST_CONVERSIONS else pytest.mark.matrix)
    for what in CONVERSIONS
    for kind in OF_COMMANDS
    # A cut needs an upload in parts, and these objects are one request each: tests/storage/gcs/test_gcs_storage.py cuts one.
    if kind != "cut"
]


@pytest.mark.cases(1)
@pytest.mark.parametrize(("what", "kind"), CONVERTED)
def test_a_conversion_with_faults_writes_the_same_bytes(
    store: FakeGcs, child: Child, pictures: dict[str, bytes], what: str, kind: str
) -> None:
    fill_converted(store, child, pictures, what, "whole")
    store.needs_token = True
    # Parts of texts are read twice, and the same damage to both would pass; tests/gcs/test_every_request.py damages one.
    read = [] if (what, kind) == ("text", "corrupt") else ["read"]
    break_all(store, kind, "list", "stat", *read, "upload", "part", "delete")
    convert(child, what, "gs://data/broken")
    assert store.faults.met >= 2
    assert output(store, "broken/") == output(store, "whole/")
    # The output is complete and intact.
    assert child("command", "verify", "gs://data/broken")[0] == 0


@pytest.mark.parametrize(
    "kind", whole("429", "500", "503", "reset", "truncated", "slow", "corrupt", fast=("503", "truncated"))
)
def test_reading_with_faults_yields_the_same_records(
    store: FakeGcs, child: Child, pictures: dict[str, bytes], kind: str
) -> None:
    fill_converted(store, child, pictures, "images", "out")
    due = fed(child), child("command", "inspect", "gs://data/out", "--json")
    break_all(store, kind, *FEED)
    assert (child("feed", "gs://data/out"), child("command", "inspect", "gs://data/out", "--json")) == due
    assert store.faults.met >= 2


@pytest.mark.matrix
def test_a_token_that_expires_early_ends_feeding_with_an_error(
    store: FakeGcs, child: Child, pictures: dict[str, bytes]
) -> None:
    fill_converted(store, child, pictures, "images", "out")
    child("feed", "gs://data/out")
    store.faults.add(Fault("expired", "read", "data/out/train-*", passing=2))
    # TensorFlow's client renews a token before it expires, but not when it is rejected.
    with pytest.raises(ChildError, match=r"StorageError: gs://data/out/train-.* could not be read: .* 401"):
        child("feed", "gs://data/out")


def test_a_bit_changed_in_transit_ends_feeding_with_an_error(
    store: FakeGcs, child: Child, pictures: dict[str, bytes]
) -> None:
    fill_converted(store, child, pictures, "images", "out")
    due = fed(child)
    # TensorFlow's reader finds it by the record's checksum and does not retry; ours has read the first record twice.
    store.faults.add(Fault("corrupt", "read", "data/out/train-*", passing=2))
    with pytest.raises(ChildError, match=r"TpudataError: gs://data/out: a record at byte .* was damaged in transit"):
        child("feed", "gs://data/out")
    assert store.faults.met == 1
    store.faults.clear()
    assert child("feed", "gs://data/out") == due


OWN_ERRORS = ("TpudataError:", "CorruptionError:", "DatasetError:", "StorageError:")


# TensorFlow's client requests each of six shards once; ours requests the first one before that.
@pytest.mark.parametrize("passing", [0, *(pytest.param(passing, marks=pytest.mark.matrix) for passing in range(1, 8))])
@pytest.mark.parametrize("kind", whole(*KINDS, fast=("empty", "html", "short")))
def test_a_fault_of_one_read_feeds_the_same_records_or_raises_our_error(
    store: FakeGcs, child: Child, pictures: dict[str, bytes], kind: str, passing: int
) -> None:
    fill_converted(store, child, pictures, "images", "out")
    due = fed(child)
    store.faults.add(Fault(kind, "read", "data/out/train-*", passing=passing, seconds=0.3))
    try:
        found = child("feed", "gs://data/out")
    except ChildError as error:
        found = str(error)
    assert found == due or found.startswith(OWN_ERRORS)
    assert store.faults.met == 1


def test_dataset_commands_work_on_gs(store: FakeGcs, child: Child, pictures: dict[str, bytes]) -> None:
    fill_converted(store, child, pictures, "images", "out")
    due = output(store, "out/")
    shards = [name for name in due if name.endswith(".tfrecord")]
    assert len(shards) > 4
    for name in ("manifest.json", shards[1]):
        del store.buckets["data"][f"out/{name}"]
    done(child, *CONVERSIONS["images"], "--output", "gs://data/out", "--resume")
    assert output(store, "out/") == due
    store.put("data", "in/3/new.png", pictures["in/3/3.png"])
    assert "1 record" in done(child, *CONVERSIONS["images"], "--output", "gs://data/out", "--append")
    assert json.loads(done(child, "inspect", "gs://data/out", "--json"))["records"] == 41
    assert "no defects" in done(child, "verify", "gs://data/out")
    name = f"out/{shards[2]}"
    data = store.buckets["data"][name].data
    store.put("data", name, data[:100] + b"?" + data[101:])
    code, words = child("command", "verify", "gs://data/out")
    assert (code, f"gs://data/{name}" in words) == (1, True)
    store.put("data", name, data)
    report = json.loads(done(child, "bench", "gs://data/out", "--batch-size", "8", "--seconds", "0.01", "--json"))
    assert report["stages"][0]["records_per_second"] > 0


@pytest.mark.parametrize("flag", ["masks", "targets"])
def test_an_outage_does_not_reject_pictures_for_their_second_file(
    store: FakeGcs, child: Child, pictures: dict[str, bytes], flag: str
) -> None:
    for name, data in pictures.items():
        if name.startswith("in/"):
            store.put("data", name, data)
            store.put("data", name.replace("in", "second", 1), data)
    store.faults.add(Fault("403", "read", "data/second/3/*", count=None))
    convert = ("convert", "images", "--input", "gs://data/in", f"--{flag}", "gs://data/second", "--num-shards", "1")
    code, words = child("command", *convert, "--output", "gs://data/out", "--on-bad-record", "skip")
    assert code == 1
    assert "permission" in words
    assert "out/manifest.json" not in store.buckets["data"]


def test_an_outage_is_not_a_defect_of_an_index_for_dali(
    store: FakeGcs, child: Child, pictures: dict[str, bytes]
) -> None:
    fill_converted(store, child, pictures, "images", "out")
    done(child, "index", "gs://data/out")
    store.faults.add(Fault("403", "*", "data/out/index/*.idx", count=None))
    code, words = child("command", "verify", "gs://data/out")
    assert code == 1
    assert "permission" in words
    assert "defect" not in words


def test_model_commands_work_on_gs(store: FakeGcs, child: Child, pictures: dict[str, bytes]) -> None:
    fill_trained(store, child, pictures)
    train = [*TRAIN, "--model-dir", "gs://data/model"]
    printed = done(child, *train, "--train-steps", "3")
    assert '"global_step": 3' in printed + read_text(store, "model/evaluation.json")
    done(child, *train, "--mode", "predict", "--num-predictions", "3")
    assert len(read_text(store, "model/predictions.jsonl").splitlines()) == 3
    assert child("export", "gs://data/model", "gs://data/export") == [3, 10]
    assert [n for n in output(store, "model/") if n.startswith("events") or "/events" in n]
    left = [*output(store, "model/"), *output(store, "export/")]
    assert not [name for name in left if name.endswith(".tmp") or "temp" in name]


# TensorFlow's client waits for more than a second before each retry, so scripts/test breaks fewer of its requests.
FIRST = (*FEED, "upload", "part")


@pytest.mark.parametrize(
    ("kind", "operations"),
    [
        ("503", FIRST),
        *(pytest.param(kind, FIRST, marks=pytest.mark.matrix) for kind in OF_TENSORFLOW if kind != "503"),
        *(
            pytest.param(kind, ("copy", "delete"), marks=pytest.mark.matrix)
            for kind in OF_TENSORFLOW
            if kind not in ("cut", "truncated")
        ),
    ],
)
def test_training_with_faults_writes_the_same_checkpoint(
    store: FakeGcs, child: Child, pictures: dict[str, bytes], kind: str, operations: tuple[str, ...]
) -> None:
    fill_trained(store, child, pictures)
    break_all(store, kind, *operations, count=1)
    done(child, *TRAIN, "--model-dir", "gs://data/broken", "--train-steps", "2", "--mode", "train")
    # Parts are cut, and reads are truncated, once.
    assert store.faults.met >= (1 if kind in ("cut", "truncated") else 2)
    name = "model.ckpt-2.data-00000-of-00001"
    assert output(store, f"broken/{name}") == output(store, f"model/{name}") != {}


def test_reports_an_unwritable_output_in_one_line(store: FakeGcs, child: Child, pictures: dict[str, bytes]) -> None:
    fill(store, pictures)
    store.bucket("secret")
    store.denied.add("secret")
    for where, words in (
        ("gs://none/out", "could not be written: no such object, or no bucket none (404)"),
        ("gs://secret/out", "no permission (403). Grant the account roles/storage.objectUser on bucket secret"),
    ):
        code, printed = child("command", *CONVERSIONS["images"], "--output", where)
        (line,) = [line for line in printed.splitlines() if "error" in line]
        assert (code, words in line) == (1, True), line
        assert "Traceback" not in printed


def convert(child: Child, what: str, folder: str) -> None:
    done(child, *CONVERSIONS[what], "--output", folder)


def done(child: Child, *argv: str) -> str:
    """What a command prints that succeeds."""
    code, printed = child("command", *argv)
    assert code == 0, printed
    return str(printed)


def read_text(store: FakeGcs, name: str) -> str:
    return store.buckets["data"][name].data.decode()

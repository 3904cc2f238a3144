"""Conversions from and to Google Cloud Storage, here a fake store on loopback.

One test removes a dataset directly, to count how many objects are deleted at a time.
"""

from __future__ import annotations

import dataclasses
import gzip
import importlib
import json
import re
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import apache_beam as beam
import numpy as np
import pytest
from PIL import Image

from beam_jobs import WriteTFRecordShards
from beam_jobs.images import run
from beam_jobs.output.removal import remove_dataset
from beam_jobs.reshard import run as run_reshard
from beam_jobs.sources import Reject, make_reference, raise_rejection
from beam_jobs.text import run as run_text
from scripts.fake_gcs import FakeGcs, Fault
from tests.beam_jobs.images import encode
from tests.beam_jobs.one_unit import OneUnit
from tests.beam_jobs.pipelines import local_pipeline, run_pipeline
from tests.beam_jobs.plugins import install
from tests.helpers.forked import Forked
from tests.helpers.pictures import digests, make_pictures
from tests.helpers.stores import serve_gs
from tpudata.cli import main
from tpudata.errors import BadRecordError, OutputError, StorageError, StorageUnavailableError, TpudataError
from tpudata.format import decode_example, metadata, open_dataset, read_records, write_metadata
from tpudata.format.written_files import WrittenFile, check_written
from tpudata.storage import RequestLimits, request_limits, storage_for
from tpudata.storage.gcs import GcsStorage
from tpudata.storage.objects.retries import RetryPolicy

PICTURES = 42


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_pictures(tmp_path_factory.mktemp("pictures"), PICTURES)


@pytest.fixture
def store(pictures: Path) -> Iterator[FakeGcs]:
    with serve_gs(page=20) as server:
        for path in pictures.rglob("*.*"):
            server.put("b", f"in/{path.relative_to(pictures)}", path.read_bytes())
        yield server


def stored(store: FakeGcs, folder: Path, prefix: str, bucket: str = "b") -> dict[str, str]:
    """Digests of the objects below a prefix, "" for those of a whole bucket, written into a folder."""
    start = f"{prefix}/" if prefix else ""
    for name, item in store.buckets[bucket].items():
        if name.startswith(start):
            path = folder / name.removeprefix(start)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(item.data)
    return digests(folder)


def put_few(store: FakeGcs, count: int = 9) -> None:
    """Copy the first objects of in to few."""
    for name in [name for name in store.buckets["b"] if name.startswith("in/")][:count]:
        store.put("b", name.replace("in/", "few/", 1), store.buckets["b"][name].data)


def remove(store: FakeGcs, prefix: str) -> None:
    """Delete the objects below a prefix."""
    for name in [name for name in store.buckets["b"] if name.startswith(f"{prefix}/")]:
        del store.buckets["b"][name]


def test_writes_the_same_bytes_to_gs_as_to_disk(store: FakeGcs, pictures: Path, tmp_path: Path) -> None:
    flags = ["--shard-size", "20kB", "--split", "train=0.8,validation=0.2"]
    store.bucket("with.dots_and-more")
    limits = request_limits()
    assert run(["--input", str(pictures), "--output", str(tmp_path / "local"), *flags]) == 0
    store.faults.add(Fault("slow", "read", "b/in/*", count=None, seconds=0.02))
    assert run(["--input", "gs://b/in", "--output", "gs://b/out", "--workers=2", "--read-threads=2", *flags]) == 0
    # Limits of requests reach the workers: two readers in each, and as many uploads at once as there are workers.
    assert store.most_in_flight <= 8
    # The limits of a conversion end with it.
    assert request_limits() is limits
    store.faults.clear()
    store.faults.add(Fault("slow", "read", "b/in/*", count=None, seconds=0.3))
    # Into the top of a bucket.
    assert run(["--input", "gs://b/in", "--output", "gs://with.dots_and-more", *flags]) == 0
    assert store.most_in_flight > 16
    assert request_limits() is limits
    local = digests(tmp_path / "local")
    for there in (
        stored(store, tmp_path / "there", "out"),
        stored(store, tmp_path / "top", "", "with.dots_and-more"),
    ):
        # The manifest names the input.
        assert {name for name in local if local[name] != there.get(name)} == {"manifest.json"}
        assert local.keys() == there.keys()
    for folder in ("gs://b/out", "gs://with.dots_and-more", "gs://with.dots_and-more/"):
        assert main(["verify", folder]) == 0


@pytest.mark.parametrize("compression", ["gzip", pytest.param("none", marks=pytest.mark.matrix)])
def test_reshard_writes_the_same_bytes_to_gs_as_to_disk(
    store: FakeGcs, pictures: Path, tmp_path: Path, compression: str
) -> None:
    flags = ["--num-shards=3", "--split=train=0.8,validation=0.2", "--compression=none"]
    assert run(["--input", str(pictures), "--output", str(tmp_path / "d"), f"--compression={compression}"]) == 0
    for path in (tmp_path / "d").rglob("*"):
        if path.is_file():
            store.put("b", f"d/{path.relative_to(tmp_path / 'd')}", path.read_bytes())
    assert run_reshard([str(tmp_path / "d"), f"--output={tmp_path}/local", *flags]) == 0
    assert run_reshard(["gs://b/d", "--output=gs://b/there", *flags]) == 0
    local, there = digests(tmp_path / "local"), stored(store, tmp_path / "there", "there")
    # The manifest names the input.
    assert {name for name in local if local[name] != there.get(name)} == {"manifest.json"}
    assert local.keys() == there.keys()
    assert main(["verify", "gs://b/there"]) == 0


def test_a_shard_takes_five_requests(store: FakeGcs, tmp_path: Path) -> None:
    counts = []
    # Shards of 1.2 MB stand for those of 100 MB: smaller ones are one request, as are indexes and keys.
    random = np.random.default_rng(0)
    for number in range(24):
        noise = Image.fromarray(random.integers(0, 256, (300, 350, 3), np.uint8))
        noise.save(tmp_path / f"{number}.png", compress_level=0)
    for number, shards in enumerate((2, 6)):
        store.requests.clear()
        flags = [f"--output=gs://b/out{number}", f"--num-shards={shards}", "--unlabelled"]
        assert run(["--input", str(tmp_path), *flags]) == 0
        counts.append(dict(store.requests))
    fewer, more = counts
    # The claim is read; the shard is an upload of one part, its index and its keys are a request each. Lists are of whole folders.
    each = {name: (more[name] - fewer[name]) / 4 for name in more if name != "list"}
    assert {name: count for name, count in each.items() if count} == {"read": 1, "upload": 3, "part": 1}
    assert more["delete"] == 1  # of the claim


# test_writes_the_same_bytes_to_gs_as_to_disk passes limits to other workers.
@pytest.mark.parametrize("workers", ["1", pytest.param("2", marks=pytest.mark.matrix)])
def test_gives_up_after_the_retry_time(store: FakeGcs, tmp_path: Path, workers: str) -> None:
    store.faults.add(Fault("503", "read", count=None))
    argv = ["--input", "gs://b/in", "--output", str(tmp_path / "out"), "--num-shards=1", "--workers", workers]
    began = time.monotonic()
    with pytest.raises(StorageUnavailableError, match="until the time limit of retries"):
        run([*argv, "--retry-seconds=0.1"])
    assert request_limits() == RequestLimits()
    # The default is three minutes.
    assert time.monotonic() - began < 90


@pytest.mark.parametrize("dry_run", [[], ["--dry-run"]], ids=["run", "plan"])
@pytest.mark.parametrize("job", [run, run_text, run_reshard])
def test_looking_at_the_input_gives_up_after_the_retry_time(
    store: FakeGcs, tmp_path: Path, job: Callable[[list[str]], int], dry_run: list[str]
) -> None:
    store.faults.add(Fault("503", count=None))
    source = ["gs://b/in"] if job is run_reshard else ["--input", "gs://b/in"]
    began = time.monotonic()
    with pytest.raises(StorageUnavailableError, match="until the time limit of retries"):
        job([*source, "--output", str(tmp_path / "out"), "--retry-seconds=0.1", *dry_run])
    assert request_limits() == RequestLimits()
    assert time.monotonic() - began < 90


def test_answers_of_429_change_no_byte(store: FakeGcs, tmp_path: Path) -> None:
    put_few(store)
    argv = ["--input", "gs://b/few", "--num-shards=2", "--output"]
    assert run([*argv, str(tmp_path / "whole")]) == 0
    store.capacity, store.latency = 2, 0.005
    assert run([*argv, str(tmp_path / "out")]) == 0
    assert store.requests["rejected"]
    assert digests(tmp_path / "out") == digests(tmp_path / "whole")


def test_resumes_appends_and_overwrites_on_gs(store: FakeGcs, tmp_path: Path) -> None:
    argv = ["--input", "gs://b/in", "--output", "gs://b/out", "--shard-size", "20kB"]
    assert run(argv) == 0
    whole = stored(store, tmp_path / "whole", "out")
    with pytest.raises(OutputError, match="holds a dataset"):
        run(argv)
    objects = store.buckets["b"]
    shards = sorted(name for name in objects if name.startswith("out/train-"))
    generations = {name: objects[name].generation for name in shards}
    for name in ("out/manifest.json", shards[1]):
        del objects[name]
    # A shard of other bytes is written again, as one that is missing.
    data = objects[shards[0]].data
    generations[shards[0]] = store.put("b", shards[0], data[:-1] + bytes([data[-1] ^ 1])).generation
    assert run([*argv, "--resume"]) == 0
    assert stored(store, tmp_path / "resumed", "out") == whole
    assert [name for name in shards if objects[name].generation != generations[name]] == shards[:2]
    store.put("b", "in/cat/new.jpg", objects["in/cat/000.jpg"].data)
    assert run([*argv, "--append"]) == 0
    assert "out/train-a001-00000-of-00001.tfrecord" in objects
    assert main(["verify", "gs://b/out"]) == 0
    assert run([*argv, "--overwrite"]) == 0
    assert not [name for name in objects if "a001" in name or "/." in name]
    assert main(["verify", "gs://b/out"]) == 0


@pytest.mark.matrix
def test_writes_metadata_and_deletes_datasets_concurrently(store: FakeGcs) -> None:
    assert run(["--input", "gs://b/in", "--output", "gs://b/out", "--shard-size", "20kB"]) == 0
    dataset = open_dataset("gs://b/out")
    labels = dataset.labels()
    store.latency, store.most_in_flight = 0.3, 0
    write_metadata("gs://b/out", dataset.manifest, labels)
    assert store.most_in_flight >= 3
    store.most_in_flight = 0
    remove_dataset("gs://b/out")
    assert store.most_in_flight >= 8
    assert not [name for name in store.buckets["b"] if name.startswith("out/")]


def test_writes_no_manifest_if_the_store_lost_an_object(
    store: FakeGcs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_for: set[str] = set()

    def look(folder: str, files: Iterable[WrittenFile]) -> None:
        files = list(files)
        looked_for.update(f"out/{file.name}" for file in files)
        check_written(folder, files)

    monkeypatch.setattr(metadata, "check_written", look)
    put_few(store)
    store.put("b", "few/cat/bad.jpg", b"no picture")
    argv = ["--input", "gs://b/few", "--output", "gs://b/out", "--num-shards=2", "--on-bad-record=skip"]
    argv += ["--max-bad-records=1"]
    assert run(argv) == 0
    due = stored(store, tmp_path / "whole", "out")
    # Shards, their indexes and keys, rejects, labels and the files of TFDS.
    there = {name for name in store.buckets["b"] if name.startswith("out/")}
    assert looked_for == there - {"out/manifest.json"}
    (rejects,) = [name for name in there if name.startswith("out/rejects/")]
    remove(store, "out")
    # Every answer is as it should be.
    store.faults.add(Fault("unstored", "upload", f"b/{rejects}"))
    with pytest.raises(OutputError, match=r"it is not as it was written \(got no file"):
        run(argv)
    assert store.faults.met == 1
    assert "out/manifest.json" not in store.buckets["b"]
    looked_for.clear()
    assert run([*argv, "--resume"]) == 0
    assert looked_for == there - {"out/manifest.json"}
    assert stored(store, tmp_path / "resumed", "out") == due


def test_verify_does_not_report_an_outage_as_a_defect(
    store: FakeGcs, impatient: None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["--input", "gs://b/in", "--output", "gs://b/out", "--num-shards=1"]) == 0
    for where in ("b/out/train-00000-*", "b/out/index/train-00000-*.index"):
        store.faults.clear()
        store.faults.add(Fault("html", "read", where, count=None))
        capsys.readouterr()
        assert main(["verify", "gs://b/out"]) == 1
        said = capsys.readouterr()
        assert "until the time limit of retries" in said.err, where
        assert "cannot be read" not in said.out + said.err


def test_reads_many_objects_concurrently(store: FakeGcs, tmp_path: Path) -> None:
    storage_for("gs://b/in").stat("gs://b/in")
    store.latency, store.most_in_flight = 0.02, 0
    assert run(["--input=gs://b/in", "--output", str(tmp_path / "out"), "--num-shards=1"]) == 0
    assert store.most_in_flight >= 8


@dataclasses.dataclass(frozen=True, kw_only=True)
class Gone(OneUnit):
    """Objects of which one went after it was listed."""

    def references(self, unit: str, ignored: list[str], reject: Reject = raise_rejection) -> Iterator[Any]:
        del ignored, reject
        for entry in storage_for(unit).list(f"{unit}/cat"):
            yield make_reference(self.options, entry.name, path=entry.path, size=entry.size)
        yield make_reference(self.options, "gone", path=f"{unit}/cat/gone.jpg", size=100)


def test_rejects_an_object_deleted_after_listing(
    store: FakeGcs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch, "tpudata.sources", gone=Gone)
    argv = ["--source=gone", "--input=gs://b/in", "--output", str(tmp_path / "out"), "--on-bad-record=skip"]
    assert run([*argv, "--max-bad-records=1"]) == 0
    (reject,) = (tmp_path / "out" / "rejects").glob("*.jsonl")
    assert "no such object, or no bucket" in reject.read_text()
    assert '"gs://b/in/cat/gone.jpg"' in reject.read_text()


def test_rejects_objects_with_a_content_encoding_by_name(store: FakeGcs, tmp_path: Path) -> None:
    store.put("b", "in/cat/000.jpg", gzip.compress(store.buckets["b"]["in/cat/000.jpg"].data), encoding="gzip")
    argv = ["--input", "gs://b/in", "--output", str(tmp_path / "out"), "--num-shards=2"]
    with pytest.raises(BadRecordError, match=r"gs://b/in/cat/000\.jpg: rejected: .*stored with Content-Encoding: gzip"):
        run(argv)
    assert run([*argv, "--on-bad-record=skip", "--max-bad-records=1", "--resume"]) == 0
    manifest = open_dataset(str(tmp_path / "out")).manifest
    assert (manifest.records, sum(manifest.rejected.values())) == (PICTURES - 1, 1)
    store.put("b", "list.csv", gzip.compress(b"path,label\nin/cat/003.png,cat\n"), encoding="gzip")
    with pytest.raises(
        StorageError, match=r"gs://b/list\.csv could not be read: it is stored with Content-Encoding: gzip"
    ):
        run(["--input", "gs://b/list.csv", "--output", str(tmp_path / "other")])


@pytest.fixture
def impatient(store: FakeGcs, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = GcsStorage(RetryPolicy(first_wait=0.01, longest_wait=0.05, limit=0.1))
    monkeypatch.setattr("tpudata.storage.select._make_storage", lambda _scheme: storage)


@pytest.mark.cases(1)
@pytest.mark.parametrize(
    ("form", "kinds"),
    [
        ("images", ("short",)),
        ("list", ("403",)),
        ("text", ("html",)),
        pytest.param("images", ("503", "403", "html", "empty", "unhashed"), marks=pytest.mark.matrix),
        pytest.param("list", ("503", "short", "html", "empty", "unhashed"), marks=pytest.mark.matrix),
        # The last read of a text may find its end, an answer without bytes to damage.
        pytest.param("text", ("503", "403", "empty"), marks=pytest.mark.matrix),
    ],
)
def test_an_outage_aborts_and_rejects_no_record(
    store: FakeGcs, impatient: None, tmp_path: Path, form: str, kinds: tuple[str, ...]
) -> None:
    put_few(store)
    names = [name for name in store.buckets["b"] if name.startswith("few/")]
    store.put("b", "list.csv", "".join(["path,label\n", *(f"{name},cat\n" for name in names)]).encode())
    store.put("b", "text/a.txt", b"a line\n" * 100)
    source, what, operation = {
        "images": ("gs://b/few", "b/few/*", "read"),
        "list": ("gs://b/list.csv", "b/few/*", "stat"),
        "text": ("gs://b/text", "b/text/*", "read"),
    }[form]
    convert = run_text if form == "text" else run
    argv = ["--input", source, "--on-bad-record=skip", "--max-bad-records=100%", "--output"]
    store.requests.clear()
    assert convert([*argv, str(tmp_path / "whole")]) == 0
    # The last read of a text is that of its lines.
    passing = store.requests["read"] - 1 if form == "text" else 0
    for kind in kinds:
        store.faults.add(Fault(kind, operation, what, count=None, passing=passing))
        with pytest.raises(StorageUnavailableError, match=f"gs://{what.removesuffix('*')}"):
            convert([*argv, str(tmp_path / kind)])
        assert not (tmp_path / kind / "manifest.json").exists()
        assert not list((tmp_path / kind).glob("rejects/*"))
        store.faults.clear()
    assert convert([*argv, str(tmp_path / kinds[0]), "--resume"]) == 0
    assert digests(tmp_path / kinds[0]) == digests(tmp_path / "whole")


@pytest.mark.cases(1)
@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("shuffle", ["--shuffle", "--no-shuffle"])
def test_small_documents_take_few_requests(store: FakeGcs, shuffle: str, tmp_path: Path) -> None:
    notes = {f"{n}.txt": "".join(f"@cat\nnote {n} {m}\n" for m in range(200)) for n in range(3)}
    (tmp_path / "notes").mkdir()
    for name, text in notes.items():
        store.put("b", f"notes/{name}", text.encode())
        (tmp_path / "notes" / name).write_text(text)
    flags = ["--source=diary", "--num-shards=2", shuffle]
    for output, arguments in (("lines", flags[1:]), ("out", flags)):
        store.requests.clear()
        assert run_text(["--input=gs://b/notes", f"--output=gs://b/{output}", *arguments]) == 0
        # A part of an object is read twice and compared: of the documents, a sample of 200 alone is read one by one.
        assert store.requests["read"] < 400 + 50
    assert run_text([f"--input={tmp_path}/notes", f"--output={tmp_path}/here", *flags]) == 0
    found = stored(store, tmp_path / "there", "out")
    assert {name: digest for name, digest in found.items() if name.startswith("train")} == {
        name: digest for name, digest in digests(tmp_path / "here").items() if name.startswith("train")
    }


def test_keeps_the_order_of_the_files_of_a_list(store: FakeGcs, tmp_path: Path) -> None:
    names = sorted(name for name in store.buckets["b"] if name.startswith("in/"))
    rows = [f"{name},{name.split('/')[1]}" for name in names]
    rows[3:3] = ["in/cat/none.jpg,cat", "gs://none/x.jpg,cat", "none://b/x.jpg,cat"]
    store.put("b", "list.csv", "\n".join(["path,label", *rows]).encode())
    argv = ["--input", "gs://b/list.csv", "--output", str(tmp_path / "out"), "--no-shuffle", "--num-shards=1"]
    assert run([*argv, "--on-bad-record=skip", "--max-bad-records=3"]) == 0
    dataset = open_dataset(str(tmp_path / "out"))
    assert sum(dataset.manifest.rejected.values()) == 3
    shard = tmp_path / "out" / "train-00000-of-00001.tfrecord"
    found = [decode_example(record)["image/filename"][0] for _, record in read_records(str(shard))]
    assert found == [name.encode() for name in names]
    rejected = [
        json.loads(line) for file in (tmp_path / "out").glob("rejects/*") for line in file.read_bytes().splitlines()
    ]
    assert [line["source"].rpartition(" ")[2] for line in rejected] == ["5", "6", "7"]


@pytest.mark.matrix
def test_checks_the_files_of_a_list_concurrently(store: FakeGcs, tmp_path: Path) -> None:
    # Those that are missing are not read: their requests are those of looking.
    store.put("b", "list.csv", "\n".join(["path,label", *(f"in/none{row}.jpg,cat" for row in range(60))]).encode())
    store.latency = 0.2
    argv = ["--input", "gs://b/list.csv", "--output", str(tmp_path / "out"), "--dry-run"]
    with pytest.raises(TpudataError, match="no files to convert"):
        run([*argv, "--on-bad-record=skip", "--max-bad-records=100%"])
    assert store.most_in_flight > 16


def test_concurrent_conversions_leave_at_most_one_whole_dataset(store: FakeGcs, tmp_path: Path) -> None:
    store.latency = 0.005
    argv = ["--output", "gs://b/out", "--shard-size", "50kB"]
    for name in list(store.buckets["b"]):
        store.put("b", f"other/{name}", store.buckets["b"][name].data + b"tail")

    def convert(source: str) -> str:
        try:
            return str(run(["--input", source, *argv]))
        except TpudataError as error:
            return str(error)

    with ThreadPoolExecutor() as pool:
        said = list(pool.map(convert, ["gs://b/in", "gs://b/other/in"]))
    whole = [words == "0" for words in said]
    assert whole.count(True) <= 1, said
    for words in said:
        assert words == "0" or re.search("another run is at work there|not empty|holds a dataset", words)
    assert (main(["verify", "gs://b/out"]) == 0) == any(whole)


def test_resumes_a_conversion_stopped_during_an_upload(store: FakeGcs, tmp_path: Path) -> None:
    # Shards of more than 1 MiB, which are sent in several requests.
    remove(store, "in")
    random = np.random.default_rng(0)
    for number in range(6):
        store.put("b", f"in/cat/noise{number}.png", encode(random.integers(0, 256, (450, 450, 3), np.uint8), "PNG"))
    argv = ["--input", "gs://b/in", "--output", "gs://b/out", "--shard-size", "1.3MB"]
    assert run(argv) == 0
    due = stored(store, tmp_path / "whole", "out")
    remove(store, "out")
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    store.bandwidth = 4e6
    for shards, by, code, said in (
        (1, signal.SIGTERM, 143, "tpudata: ended by SIGTERM"),
        (2, signal.SIGKILL, -9, ""),
    ):
        words = ["-m", "beam_jobs.images", *argv, *(["--resume"] if shards > 1 else [])]
        with Forked(*words, environment={"TMPDIR": str(scratch)}) as process:
            while not (len([name for name in store.buckets["b"] if "out/train" in name]) >= shards and store.uploads):
                assert process.returncode is None, process.stderr
                time.sleep(0.01)
            process.send_signal(by)
            assert process.wait(60) == code
            if said:
                assert process.stderr.splitlines()[-1] == said
                assert not list(scratch.iterdir())
        assert "out/manifest.json" not in store.buckets["b"]
    store.bandwidth = None
    assert run([*argv, "--resume"]) == 0
    assert stored(store, tmp_path / "resumed", "out") == due


def test_pipelines_write_the_same_bytes_to_gs_as_to_disk(store: FakeGcs, tmp_path: Path) -> None:
    examples = [(f"key {number}", {"x": [number] * 9, "label": number % 3}) for number in range(60)]
    for output in (str(tmp_path / "local"), "gs://b/out"):
        pipeline = local_pipeline()
        _ = pipeline | beam.Create(examples) | WriteTFRecordShards(output, shard_size="2kB", split="train=0.8,test=0.2")
        run_pipeline(pipeline)
    assert stored(store, tmp_path / "there", "out") == digests(tmp_path / "local")
    assert main(["verify", "gs://b/out"]) == 0


@pytest.mark.parametrize("path", ["gs://", "gs:/b/out", "GS://b/out", "gs://none"])
def test_reports_an_invalid_output_in_one_line(
    store: FakeGcs, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["convert", "images", "--input", "gs://b/in", "--output", path]) == 1
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line]
    assert line.startswith("tpudata: error: ")
    assert path.rstrip("/") in line
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("folder", ["gs://", "gs:/b", "gs://none/out", "gs://b/nothing", "gs://b/in//"])
@pytest.mark.parametrize("command", ["inspect", "verify"])
def test_reports_a_missing_dataset_in_one_line(
    store: FakeGcs, capsys: pytest.CaptureFixture[str], folder: str, command: str
) -> None:
    assert main([command, folder]) == 1
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line]
    assert line.startswith("tpudata: error: ")
    assert folder.rstrip("/") in line


@pytest.mark.parametrize("kind", ["images", "text"])
def test_rejects_an_unwritable_bucket_before_reading_the_input(store: FakeGcs, kind: str) -> None:
    store.faults.add(Fault("403", "upload", count=None))
    before = dict(store.buckets["b"])
    with pytest.raises(StorageError, match=r"gs://b/out could not be written: .*403"):
        importlib.import_module(f"beam_jobs.{kind}").run(["--input=gs://b/missing", "--output=gs://b/out"])
    assert store.buckets["b"] == before

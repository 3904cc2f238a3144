"""The conversions as functions: the bytes of the command, its checks, and nothing changed in the program that calls them."""

from __future__ import annotations

import json
import logging
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import DirectOptions, PipelineOptions, StandardOptions
from apache_beam.runners.portability.fn_api_runner import FnApiRunner

import tpudata
from beam_jobs import images, reshard, text
from beam_jobs.calls import ConversionPlan, PlannedSplit
from tests.beam_jobs.resharding import numbered
from tests.beam_jobs.run.test_runner import NO_FREEZE
from tests.helpers.pictures import digests, make_pictures
from tests.helpers.processes import ROOT
from tpudata.errors import BadRecordError, MissingExtraError, OutputError, UsageError

FUNCTIONS: dict[str, Callable[..., Any]] = {
    "images": tpudata.convert_images,
    "text": tpudata.convert_text,
    "reshard": tpudata.reshard,
}
KEYWORDS: dict[str, dict[str, Any]] = {
    "images": {"split": {"train": 0.75, "test": 0.25}, "num_shards": 3, "resize_shorter": 20, "check": "decode"},
    "text": {"tokenizer": "chars", "sequence_length": 32, "pack": True, "dedup": True, "shard_bytes": "5kB"},
    "reshard": {"shuffle": True, "take": ["train"], "num_shards": 2, "compression": "gzip"},
}
FLAGS = {
    "images": ["--split=train=0.75,test=0.25", "--num-shards=3", "--resize-shorter=20", "--check=decode"],
    "text": ["--tokenizer=chars", "--sequence-length=32", "--pack", "--dedup", "--shard-size=5kB"],
    "reshard": ["--shuffle", "--take-splits=train", "--num-shards=2", "--compression=gzip"],
}


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("sources")
    lines = folder / "in.txt"
    lines.write_text("".join(f"line {n % 300} {'word ' * (n % 7)}\n" for n in range(400)))
    return {
        "images": make_pictures(folder / "pictures", 48),
        "text": lines,
        "reshard": numbered(folder / "numbers", {"train": 90, "test": 10}),
    }


@pytest.fixture(scope="module")
def pictures(sources: dict[str, Path]) -> Path:
    return sources["images"]


@pytest.fixture(scope="module")
def command_digests(sources: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, str]]:
    """Digests of what the commands write, by kind."""
    folder = tmp_path_factory.mktemp("commands")
    assert images.run([f"--input={sources['images']}", f"--output={folder}/images", *FLAGS["images"]]) == 0
    assert text.run([f"--input={sources['text']}", f"--output={folder}/text", *FLAGS["text"]]) == 0
    assert reshard.run([str(sources["reshard"]), f"--output={folder}/reshard", *FLAGS["reshard"]]) == 0
    return {kind: digests(folder / kind) for kind in FUNCTIONS}


@pytest.mark.cases(2)
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("kind", FUNCTIONS)
def test_functions_write_the_bytes_of_the_commands(
    kind: str,
    workers: int,
    sources: dict[str, Path],
    command_digests: dict[str, dict[str, str]],
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    manifest = FUNCTIONS[kind](sources[kind], tmp_path / "out", workers=workers, **KEYWORDS[kind])
    assert digests(tmp_path / "out") == command_digests[kind]
    assert manifest == tpudata.open_dataset(str(tmp_path / "out")).manifest
    assert capfd.readouterr() == ("", "")


@pytest.mark.cases(1)
@pytest.mark.parametrize("kind", FUNCTIONS)
def test_prism_writes_the_same_bytes(
    kind: str,
    sources: dict[str, Path],
    command_digests: dict[str, dict[str, str]],
    tmp_path: Path,
    prism: list[str],
) -> None:
    location, freeze = (flag.partition("=")[2] for flag in (prism[1], NO_FREEZE))
    beam_options = {"prism_location": location, "experiments": [freeze]}
    FUNCTIONS[kind](sources[kind], tmp_path / "out", runner="prism", beam_options=beam_options, **KEYWORDS[kind])
    assert digests(tmp_path / "out") == command_digests[kind]


@pytest.mark.matrix
def test_unguarded_scripts_convert_with_workers_and_without_tensorflow(
    pictures: Path, command_digests: dict[str, dict[str, str]], tmp_path: Path
) -> None:
    script = tmp_path / "script.py"
    script.write_text(f"""
import logging, sys
import tpudata
loaded = [name for name in sys.modules if name.partition(".")[0] in ("apache_beam", "numpy", "beam_jobs")]
manifest = tpudata.convert_images({str(pictures)!r}, "out", workers=2, **{KEYWORDS["images"]!r})
print(loaded, manifest.records, [name for name in sys.modules if name.partition(".")[0] in ("tensorflow", "jax")])
logging.basicConfig(format="[%(message)s]")
logging.warning("a warning of the program")
""")
    environment = {"PYTHONPATH": str(ROOT), "PATH": ""}
    done = subprocess.run(
        [sys.executable, script], cwd=tmp_path, capture_output=True, text=True, check=True, env=environment
    )
    assert done.stdout == "[] 48 []\n"
    assert done.stderr.splitlines()[-1] == "[a warning of the program]"
    assert digests(tmp_path / "out") == command_digests["images"]


def test_a_call_without_beam_names_what_to_install() -> None:
    program = """
import sys
sys.modules["apache_beam"] = None  # As if it were not installed.
import tpudata
print(tpudata.reshard.__name__)
try:
    tpudata.convert_images("in", "out")
except tpudata.MissingExtraError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    name, message = done.stdout.splitlines()
    assert name == "reshard"
    assert message.startswith("tpudata.convert_images needs Apache Beam, which is not installed. Run: pip install ")
    assert issubclass(MissingExtraError, ImportError)


STATE = """
import gc, logging, signal, sys, threading, time, warnings
import tpudata, beam_jobs.calls.call, beam_jobs.images

def state():
    return (
        [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)],
        [sys.stdout, sys.stderr, sys.excepthook, threading.excepthook],
        [(name, logging.getLogger(name).level, logging.getLogger(name).filters[:])
         for name in (None, "apache_beam", "apache_beam.runners", "tpudata", "PIL")],
        logging.root.manager.disable,
        warnings.filters, list(warnings.filters), warnings.showwarning,
        gc.isenabled(), gc.get_freeze_count(), sys.argv[:],
    )

def watch():
    while not done:
        seen.append(state() == before)
        time.sleep(0.002)

before, seen, done = state(), [], False
watching = threading.Thread(target=watch)
watching.start()
for workers in (1, 2):
    tpudata.convert_images(sys.argv[1], f"{sys.argv[2]}/{workers}", workers=workers, check="decode", quality=90)
    try:
        tpudata.convert_images(sys.argv[1], f"{sys.argv[2]}/{workers}", workers=workers)
    except tpudata.OutputError:
        pass
done = True
watching.join()
print(state() == before, all(seen), len(seen) > 10, logging.root.handlers)
"""


def test_a_running_call_leaves_process_state_unchanged(pictures: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", STATE, pictures, tmp_path], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout == "True True True []\n"


LOGGING = """
import logging, sys, threading, time
from pathlib import Path
import tpudata

output = Path(sys.argv[2])

def add_handler():
    while not output.exists():
        time.sleep(0.002)
    logging.root.addHandler(handler)

handler = logging.StreamHandler(sys.stdout)
adding = threading.Thread(target=add_handler)
adding.start()
tpudata.convert_images(sys.argv[1], output, num_shards=40)
adding.join()
print(logging.root.handlers == [handler])
"""


@pytest.mark.matrix
def test_keeps_a_log_handler_added_during_a_call(pictures: Path, tmp_path: Path) -> None:
    words = [sys.executable, "-c", LOGGING, str(pictures), str(tmp_path / "out")]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("True\n", "")


def test_threads_can_convert_concurrently(
    pictures: Path, command_digests: dict[str, dict[str, str]], tmp_path: Path
) -> None:
    def convert(name: str) -> None:
        tpudata.convert_images(pictures, tmp_path / name, **KEYWORDS["images"])

    threads = [threading.Thread(target=convert, args=(name,)) for name in ("a", "b")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert digests(tmp_path / "a") == digests(tmp_path / "b") == command_digests["images"]


INTERRUPTED = """
import os, signal, sys, threading, time
from pathlib import Path
import tpudata
from tpudata.storage import LocalStorage

source, output, workers = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
create = LocalStorage.create

def create_slowly(self, path, **options):
    # Shards of this process take long enough for the other thread to see the first two on a busy machine.
    time.sleep(0.1 * path.endswith(".tfrecord"))
    return create(self, path, **options)

def interrupt():
    while len([*output.glob("*.tfrecord")]) < 2:
        time.sleep(0.002)
    os.kill(os.getpid(), signal.SIGINT)

LocalStorage.create = create_slowly
threading.Thread(target=interrupt, daemon=True).start()
try:
    tpudata.convert_images(source, output, num_shards=40, workers=workers)
except KeyboardInterrupt:
    print("interrupted", (output / "manifest.json").exists(), (output / ".tpudata-claim").exists())
LocalStorage.create = create
print(tpudata.convert_images(source, output, num_shards=40, resume=True).records)
"""


@pytest.mark.cases(1)
@pytest.mark.parametrize("workers", [1, 2])
def test_resumes_an_interrupted_call(pictures: Path, workers: int, tmp_path: Path) -> None:
    words = [sys.executable, "-c", INTERRUPTED, str(pictures), f"{tmp_path}/out", str(workers)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "interrupted False False\n48\n"
    tpudata.convert_images(pictures, tmp_path / "whole", num_shards=40)
    assert digests(tmp_path / "out") == digests(tmp_path / "whole")


def test_dry_run_returns_the_plan_and_writes_nothing(
    pictures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = tpudata.convert_images(pictures, tmp_path / "out", num_shards=2, dry_run=True)
    assert isinstance(plan, ConversionPlan)
    assert plan.inputs == 48
    assert plan.splits == {"train": PlannedSplit(48, 2, plan.splits["train"].bytes)}
    assert not (tmp_path / "out").exists()
    assert capsys.readouterr() == ("", "")
    assert images.run([f"--input={pictures}", f"--output={tmp_path}/out", "--num-shards=2", "--dry-run"]) == 0
    assert capsys.readouterr().out == f"{plan}\n"


def test_text_plan_says_that_it_includes_duplicates(
    sources: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = tpudata.convert_text(sources["text"], tmp_path / "out", dedup=True, dry_run=True)
    assert text.run([f"--input={sources['text']}", f"--output={tmp_path}/out", "--dedup", "--dry-run"]) == 0
    assert capsys.readouterr().out == f"{plan}\n"
    assert "including duplicates" in str(plan)


def test_progress_is_a_bar_on_stderr(pictures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tpudata.convert_images(pictures, tmp_path / "out", progress=True)
    out, err = capsys.readouterr()
    assert out == ""
    assert "48 records" in err


def test_resume_overwrite_and_append_work_as_keywords(tmp_path: Path) -> None:
    source, output = make_pictures(tmp_path / "in", 12), tmp_path / "out"
    tpudata.convert_images(source, output, quality=50, seed=7)
    with pytest.raises(
        OutputError, match=r"^output .* holds a dataset\. Pass overwrite=True to replace it, append=True"
    ):
        tpudata.convert_images(source, output)
    assert tpudata.convert_images(source, output, quality=50, seed=7, resume=True).records == 12
    shutil.copy(source / "cat" / "000.jpg", source / "cat" / "more.jpg")
    # Options that are not passed are those of the dataset.
    added = tpudata.convert_images(source, output, append=True)
    assert added.records == 13
    assert (added.options["quality"], added.options["seed"]) == (50, 7)
    assert tpudata.convert_images(source, output, append=True) == added
    replaced = tpudata.convert_images(source, output, overwrite=True)
    assert (replaced.records, replaced.options["seed"]) == (13, 0)


def test_takes_paths_of_bytes(tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("a\n")
    paths: list[Any] = [os.fsencode(tmp_path / name) for name in ("in.txt", "out")]
    manifest = tpudata.convert_text(*paths)
    assert manifest.records == 1
    assert (tmp_path / "out" / "manifest.json").exists()


def test_append_rejects_an_explicit_default_that_the_dataset_lacks(tmp_path: Path) -> None:
    lines, output = tmp_path / "in.txt", tmp_path / "out"
    lines.write_text("one\ntwo\n")
    tpudata.convert_text(lines, output, tokenizer="bytes", sequence_length=4, end_documents=False)
    with pytest.raises(OutputError, match=r"end_documents"):
        tpudata.convert_text(tmp_path / "*.txt", output, append=True, end_documents=True)


def test_reshard_merges_datasets_and_logs_missing_split_keys(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    inputs = [numbered(tmp_path / "a", {"train": 5}), numbered(tmp_path / "b", {"train": 4}, first=5)]
    (tmp_path / "keys.txt").write_text("3\n7\n100\n")
    manifest = tpudata.reshard(inputs, tmp_path / "out", key="n", split_keys={"test": tmp_path / "keys.txt"})
    assert {name: split.records for name, split in manifest.splits.items()} == {"test": 2, "train": 7}
    assert [record.getMessage() for record in caplog.records if record.name == "tpudata"] == [
        f"{tmp_path}/out: no record   for at least 1 key of 3 in the list of test"
    ]


def test_logs_input_warnings_without_flags(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for name in ("images", "masks"):
        make_pictures(tmp_path / "made", 6)
        shutil.copytree(tmp_path / "made" / "cat", tmp_path / "in" / name)
    manifest = tpudata.convert_images(tmp_path / "in", tmp_path / "out")
    assert manifest.warnings
    logged = [record for record in caplog.records if record.name == "tpudata"]
    assert [record.levelno for record in logged] == [logging.WARNING] * len(manifest.warnings)
    assert all(str(tmp_path / "out") in record.getMessage() and "--" not in record.getMessage() for record in logged)


def test_bad_record_errors_keep_their_class_and_source(tmp_path: Path) -> None:
    source = make_pictures(tmp_path / "in", 6)
    (source / "cat" / "bad.jpg").write_bytes(b"no picture")
    # tests/beam_jobs/output/test_folder.py has such an error of another process.
    with pytest.raises(BadRecordError, match=r"^\S+/cat/bad.jpg: rejected: ") as error:
        tpudata.convert_images(source, tmp_path / "out")
    assert error.value.source == f"{source}/cat/bad.jpg"
    manifest = tpudata.convert_images(source, tmp_path / "out", on_bad_record="skip", max_bad_records=1, resume=True)
    assert sum(manifest.rejected.values()) == 1


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"num_shards": 0}, r"argument num_shards: '0' is not a whole number of 1 or more\. See: help\(tpudata\.conv"),
        ({"num_shards": 1.5}, r"argument num_shards: '1\.5' is not a whole number"),
        ({"seed": 10**5000}, r"^seed: too large \(got an integer of 16,610 bits\)"),
        ({"column_types": {"a": "int=" + "1" * 5000}}, r"^column_types: a=int=1+: .*fits int64"),
        ({"seed": True}, r"argument seed: invalid int value: 'true'"),
        ({"seed": 3, "shuffle": False}, r"^seed sets the shuffled order, and shuffle=False keeps"),
        ({"resume": True, "append": True}, r"^resume=True and append=True: choose one"),
        ({"resume": "often"}, r"argument resume: 'often' is neither true nor false"),
        ({"split": {"train": 0.5}}, r"argument split: the shares of the splits do not add up to 1 \(got 0\.5\)"),
        ({"shard_bytes": "big"}, r"argument shard_bytes: 'big': not a size"),
        ({"max_bad_records": 3}, r"^max_bad_records requires on_bad_record=skip"),
        ({"layout": "raw", "quality": 3}, r"^quality is for JPEGs"),
        ({"labels_file": ""}, r"^labels_file is empty\. Pass a value, or omit the argument"),
        ({"reader": "tensorflow-tpu", "label_offset": 0}, r"^reader=tensorflow-tpu needs label_offset=1 \(got 0\)"),
        ({"detach": True}, r"^detach=True: a job of FnApiRunner"),
        ({"runner": "prism", "workers": 2}, r"^workers is for the local runner; PrismRunner has"),
        ({"runner": "NoRunner"}, r"^runner=NoRunner: "),
        (
            {"runner": "prism", "beam_options": {"runner": "dataflow"}},
            r"^runner=prism: beam_options name a runner, too",
        ),
        ({"pipeline": "prism"}, r"^pipeline: invalid \(got 'prism', expected an apache_beam\.Pipeline\)"),
        ({"beam_options": ["--projet=p"]}, r"^beam_options: Beam has no flag --projet=p"),
        ({"beam_options": {"projet": "p"}}, r"^beam_options: Beam has no option projet; did you mean project\?"),
        ({"beam_options": "--project=p"}, r"^beam_options: invalid \(got '--project=p', expected PipelineOptions"),
        (
            {"runner": "dataflow", "beam_options": {"project": "p"}},
            r"^input .* is a local path, and the workers of Data",
        ),
    ],
)
def test_rejects_invalid_values_by_keyword(
    keywords: dict[str, Any], message: str, pictures: Path, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=message):
        tpudata.convert_images(pictures, tmp_path / "out", **keywords)
    assert not (tmp_path / "out").exists()


def test_unknown_keywords_raise_type_error_with_the_nearest_name() -> None:
    with pytest.raises(
        TypeError, match=r"convert_text\(\) got .* argument 'sequence_lenght'; did you mean sequence_length"
    ):
        tpudata.convert_text("in", "out", sequence_lenght=3)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match=r"reshard\(\) got an unexpected keyword argument 'append'"):
        tpudata.reshard("in", "out", append=True)  # type: ignore[call-overload]


@pytest.mark.matrix
def test_does_not_change_a_beam_options_object(pictures: Path, tmp_path: Path) -> None:
    options = PipelineOptions(["--direct_num_workers=2"])
    before = json.dumps(options.get_all_options(), default=str)
    assert tpudata.convert_images(pictures, tmp_path / "out", beam_options=options).records == 48
    assert json.dumps(options.get_all_options(), default=str) == before
    assert options.view_as(StandardOptions).runner is None
    assert options.view_as(DirectOptions).direct_num_workers == 2


class OwnRunner(FnApiRunner):  # type: ignore[misc]
    """A runner of a program, which has state."""

    def __init__(self) -> None:
        super().__init__()
        self.runs = 0

    def run_pipeline(self, *arguments: Any) -> Any:
        self.runs += 1
        return super().run_pipeline(*arguments)


@pytest.mark.cases(1)
@pytest.mark.parametrize("kind", FUNCTIONS)
def test_runs_with_the_runner_of_a_passed_pipeline(
    kind: str, sources: dict[str, Path], command_digests: dict[str, dict[str, str]], tmp_path: Path
) -> None:
    runner, seen = OwnRunner(), tmp_path / "seen"
    with beam.Pipeline(runner, PipelineOptions(["--job_name=own"])) as pipeline:
        _ = pipeline | beam.Create(["a step of the program"]) | beam.Map(seen.write_text)
        steps = set(pipeline.applied_labels)
        manifest = FUNCTIONS[kind](sources[kind], tmp_path / "out", pipeline=pipeline, **KEYWORDS[kind])
        assert manifest == tpudata.open_dataset(str(tmp_path / "out")).manifest
        assert (runner.runs, pipeline.applied_labels, seen.exists()) == (1, steps, False)
    assert (runner.runs, seen.read_text()) == (2, "a step of the program")
    assert digests(tmp_path / "out") == command_digests[kind]


@pytest.mark.parametrize("keywords", [{"runner": "prism"}, {"beam_options": ["--job_name=n"]}, {"workers": 2}])
def test_rejects_a_runner_or_options_next_to_a_pipeline(
    keywords: dict[str, Any], pictures: Path, tmp_path: Path
) -> None:
    (name,) = keywords
    with pytest.raises(UsageError, match=rf"^pipeline: it has a runner and options \(got {name}, too\)\. Omit one"):
        tpudata.convert_images(pictures, tmp_path / "out", pipeline=beam.Pipeline(), **keywords)
    assert not (tmp_path / "out").exists()

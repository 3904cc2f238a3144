"""Only one of several runs writes to an output; the others report who is at work, or take over from a dead run.

Tests make claims of runs elsewhere and of dead ones, which no run on this machine leaves.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import apache_beam as beam
import pytest

from beam_jobs import WriteTFRecordShards
from beam_jobs.images import run
from scripts.fake_gcs import FakeGcs
from tests.beam_jobs.pipelines import local_pipeline, run_pipeline
from tests.beam_jobs.test_gs import stored
from tests.helpers.forked import Forked
from tests.helpers.pictures import digests, make_pictures
from tests.helpers.stores import serve_gs
from tpudata.cli import main
from tpudata.errors import OutputError
from tpudata.storage import storage_for
from tpudata.storage.claims import hold
from tpudata.storage.claims.claim import CLAIM_NAME, JOB, PIPELINE, PROCESS, Claim, claim_path, has_claim
from tpudata.storage.claims.hold import take_claim
from tpudata.storage.claims.liveness import check_dead

ROOT = Path(__file__).parents[3]
SHARDS = 60
AT_WORK = r"another run is at work there \(host \S+, process {pid}, since 20\d\d-\d\d-\d\d .*--resume"


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_pictures(tmp_path_factory.mktemp("claimed") / "in", 120)


@pytest.fixture(scope="module")
def undisturbed(source: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    output = tmp_path_factory.mktemp("undisturbed") / "out"
    run(argv(source, str(output)))
    return digests(output)


@pytest.fixture
def store() -> Iterator[FakeGcs]:
    with serve_gs() as server:
        yield server


def argv(source: Path, output: str, *flags: str) -> list[str]:
    return ["--input", str(source), "--output", output, "--num-shards", str(SHARDS), *flags]


@contextlib.contextmanager
def halted(arguments: list[str], shards: Callable[[], int], is_complete: Callable[[], bool]) -> Iterator[Forked]:
    """A real run that is stopped while it writes shards, alive and in the middle of its work."""
    with Forked("-m", "tpudata", "convert", "images", *arguments) as job:
        deadline = time.monotonic() + 60
        while shards() == 0 and time.monotonic() < deadline:
            time.sleep(0.001)
        job.send_signal(signal.SIGSTOP)
        assert shards() > 0
        assert not is_complete()
        yield job


@contextlib.contextmanager
def halted_here(source: Path, output: Path) -> Iterator[Forked]:
    def count() -> int:
        return len([*output.glob("*.tfrecord")])

    with halted(argv(source, str(output)), count, (output / "manifest.json").exists) as job:
        yield job


def test_rejects_a_second_run_while_one_is_at_work(source: Path, tmp_path: Path, undisturbed: dict[str, str]) -> None:
    output = tmp_path / "out"
    with halted_here(source, output) as job:
        for flags in ([], ["--resume"], ["--overwrite"], ["--append"]):
            with pytest.raises(OutputError, match=AT_WORK.format(pid=job.pid)) as found:
                run(argv(source, str(output), "--seed=1", *flags))
            assert "\n" not in str(found.value)
        job.send_signal(signal.SIGCONT)
        assert job.wait(60) == 0
    assert digests(output) == undisturbed


def test_resume_takes_over_from_a_killed_run(source: Path, tmp_path: Path, undisturbed: dict[str, str]) -> None:
    output = tmp_path / "out"
    with halted_here(source, output) as job:
        job.kill()
    assert (output / CLAIM_NAME).exists()
    with pytest.raises(OutputError, match="--resume to carry on a killed run"):
        run(argv(source, str(output)))
    run(argv(source, str(output), "--resume"))
    assert digests(output) == undisturbed


def test_a_run_that_lost_its_claim_writes_no_manifest(source: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    with halted_here(source, output) as job:
        other = Claim.new(PROCESS)
        (output / CLAIM_NAME).write_bytes(other.to_bytes())
        job.send_signal(signal.SIGCONT)
        assert job.wait(60) == 1
        errors = job.stderr
    assert f"the claim of this run was taken over by another run ({other})" in errors.splitlines()[-1]
    assert not (output / "manifest.json").exists()
    # Only the other run may remove its claim.
    assert has_claim(str(output), other)


def test_runs_claim_outputs_on_gs(store: FakeGcs, source: Path, tmp_path: Path, undisturbed: dict[str, str]) -> None:
    objects = store.buckets["b"]

    def count() -> int:
        return sum(name.endswith(".tfrecord") for name in list(objects))

    with halted(argv(source, "gs://b/out"), count, lambda: "out/manifest.json" in objects) as job:
        for flags in ([], ["--resume"], ["--overwrite"]):
            with pytest.raises(OutputError, match=AT_WORK.format(pid=job.pid)):
                run(argv(source, "gs://b/out", "--seed=1", *flags))
        job.kill()
    run(argv(source, "gs://b/out", "--resume"))
    assert stored(store, tmp_path, "out") == undisturbed


def dead_claim(ends_with: str = PROCESS) -> Claim:
    """That of a process that has ended; its id may be another's by now."""
    return dataclasses.replace(Claim.new(ends_with), birth="1")


def test_a_process_whose_start_time_is_unknown_is_alive_while_it_beats(tmp_path: Path) -> None:
    # As on a system that tells no start times. Another machine's claims are watched in the same way.
    claim = dataclasses.replace(Claim.new(PROCESS), birth="")
    output = str(tmp_path)
    path = Path(claim_path(output))
    contents = [dataclasses.replace(claim, beat=beat).to_bytes() for beat in (0, 1)]
    path.write_bytes(contents[0])
    beats = threading.Timer(0.2, path.write_bytes, [contents[1]])
    beats.start()
    with pytest.raises(OutputError, match="another run is at work there"):
        check_dead(output, contents[0], None, dead_after=5.0)
    beats.join()
    check_dead(output, contents[1], None, dead_after=0.1)


@pytest.mark.parametrize("folder", ["local", "gs://b/out"])
def test_only_one_of_many_threads_takes_over_a_dead_claim(store: FakeGcs, tmp_path: Path, folder: str) -> None:
    output = str(tmp_path / folder) if folder == "local" else folder
    rivals = [Claim.new(PROCESS) for _ in range(8)]
    for _ in range(5):
        assert storage_for(output).swap(claim_path(output), None, dead_claim().to_bytes())
        start = threading.Barrier(len(rivals))

        def rival(own: Claim, start: threading.Barrier = start) -> bool:
            start.wait()
            try:
                take_claim(output, own)
            except OutputError:
                return False
            return True

        with ThreadPoolExecutor(len(rivals)) as pool:
            won = [own for own, is_winner in zip(rivals, pool.map(rival, rivals), strict=True) if is_winner]
        assert len(won) == 1
        assert has_claim(output, won[0])
        hold.drop_claim(output, won[0])
    assert storage_for(output).stat(claim_path(output)) is None


RIVAL = """
import sys
from tpudata.storage.claims.claim import PROCESS, Claim
from tpudata.storage.claims.hold import take_claim
from tpudata.storage.claims.liveness import check_dead
from tpudata.errors import OutputError
print("ready", flush=True)
sys.stdin.readline()
try:
    take_claim(sys.argv[1], Claim.new(PROCESS))
    print("won", flush=True)
except OutputError:
    print("lost", flush=True)
sys.stdin.readline()
"""


def test_only_one_of_many_processes_takes_over_a_dead_claim(tmp_path: Path) -> None:
    take_claim(str(tmp_path), dead_claim())
    rivals = [
        subprocess.Popen(
            [sys.executable, "-c", RIVAL, str(tmp_path)],
            cwd=ROOT,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        for _ in range(4)
    ]
    said: list[list[str]] = [[] for _ in rivals]
    for _ in range(2):
        for rival, words in zip(rivals, said, strict=True):
            assert rival.stdout is not None
            words.append(rival.stdout.readline().strip())
        for rival in rivals:
            assert rival.stdin is not None
            rival.stdin.write("go\n")
            rival.stdin.flush()
    for rival in rivals:
        rival.communicate()
    assert sorted(words[1] for words in said) == [*["lost"] * 3, "won"]


def elsewhere(ends_with: str) -> Claim:
    return dataclasses.replace(Claim.new(ends_with), host="elsewhere", machine="another")


@pytest.mark.parametrize("folder", ["local", "gs://b/out"])
def test_a_run_elsewhere_counts_as_dead_once_its_claim_stands_still(
    store: FakeGcs, tmp_path: Path, folder: str
) -> None:
    output = str(tmp_path) if folder == "local" else folder
    there, here = elsewhere(PROCESS), Claim.new(PROCESS)
    with (
        hold.hold_claim(output, there, beat_seconds=0.02),
        pytest.raises(OutputError, match=r"at work there \(host elsewhere, process \d+"),
    ):
        take_claim(output, here, dead_after=0.3)
    # The run above removed its claim when it ended; this one is killed.
    take_claim(output, there)
    take_claim(output, here, dead_after=0.3)
    assert has_claim(output, here)


@pytest.mark.parametrize(
    "other", [elsewhere(PIPELINE), elsewhere(JOB), dead_claim(JOB)], ids=["pipeline", "job", "job from here"]
)
def test_never_takes_over_from_a_job_that_may_go_on_elsewhere(source: Path, tmp_path: Path, other: Claim) -> None:
    take_claim(str(tmp_path), other)
    with pytest.raises(OutputError, match=rf"process {other.pid}.*remove {tmp_path}/\.tpudata-claim and run again"):
        run(argv(source, str(tmp_path), "--resume"))
    assert has_claim(str(tmp_path), other)


@pytest.mark.parametrize("data", [b"[1]", b"[" * 100_000], ids=["list", "deep"])
def test_rejects_and_keeps_an_invalid_claim_file(source: Path, tmp_path: Path, data: bytes) -> None:
    (tmp_path / CLAIM_NAME).write_bytes(data)
    with pytest.raises(OutputError, match="not a claim that this version understands"):
        run(argv(source, str(tmp_path)))
    assert (tmp_path / CLAIM_NAME).read_bytes() == data


def write(output: Path, split: str | Callable[[object], str], *, resume: bool = False) -> None:
    pipeline = local_pipeline()
    examples = pipeline | beam.Create([(f"{n}", {"n": n}) for n in range(9)])
    _ = examples | WriteTFRecordShards(output, split=split, num_shards=2, resume=resume)
    run_pipeline(pipeline)


def test_a_pipeline_holds_a_claim_while_it_runs(source: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"

    def intrude(example: object) -> str:
        with pytest.raises(OutputError, match=AT_WORK.format(pid=os.getpid())):
            run_elsewhere(source, output)
        return "train"

    write(output, intrude)
    assert not (output / CLAIM_NAME).exists()
    assert main(["verify", str(output)]) == 0


def run_elsewhere(source: Path, output: Path) -> None:
    """As a process of this machine, but this one, would: to it the claim of a pipeline of this one is a living one's."""
    with pytest.MonkeyPatch.context() as patch:
        own = os.getpid()
        patch.setattr(os, "getpid", lambda: own + 1)
        run(argv(source, str(output)))


def test_a_pipeline_that_lost_its_claim_writes_no_manifest(tmp_path: Path) -> None:
    output = tmp_path / "out"

    def lose(example: object) -> str:
        (output / CLAIM_NAME).write_bytes(elsewhere(JOB).to_bytes())
        return "train"

    with pytest.raises(OutputError, match="the claim of this run was taken over by another run"):
        write(output, lose)
    assert not (output / "manifest.json").exists()


def _fails(example: object) -> str:
    del example
    raise ValueError("a fault of the pipeline's own")


def test_resumes_a_failed_pipeline_in_the_same_process(tmp_path: Path) -> None:
    output = tmp_path / "out"
    with pytest.raises(ValueError, match="a fault of the pipeline"):
        write(output, _fails)
    write(output, "train", resume=True)
    assert main(["verify", str(output)]) == 0
    assert not (output / CLAIM_NAME).exists()


def test_readers_ignore_a_dead_claim_and_resume_and_append_remove_it(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "out"
    flags = ["--input", str(source), "--output", str(output), "--num-shards=2"]
    run(flags)
    whole = digests(output)
    take_claim(str(output), dead_claim())
    for command in ("verify", "inspect"):
        capsys.readouterr()
        assert main([command, str(output)]) == 0
        assert CLAIM_NAME not in capsys.readouterr().out
    for flag in ("--resume", "--append"):
        run([*flags, flag])
        assert digests(output) == whole
        take_claim(str(output), dead_claim())


def test_keeps_the_claim_of_a_job_that_may_go_on(tmp_path: Path) -> None:
    output = str(tmp_path)
    for job_continues, stays in ((lambda: True, True), (lambda: False, False)):
        own = Claim.new(JOB)
        with pytest.raises(OutputError), hold.hold_claim(output, own, job_continues=job_continues):
            raise OutputError("the connection or the job failed")
        assert has_claim(output, own) == stays
        hold.drop_claim(output, own)

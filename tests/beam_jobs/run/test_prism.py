"""Prism, a separate engine: byte-identical datasets, lost workers, interrupts, jobs that go on, and finding its binary.

One test makes the claim of a job that its engine has forgotten.
"""

from __future__ import annotations

import dataclasses
import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from beam_jobs import images, reshard, text
from beam_jobs.command.run_conversion import parse_flags
from beam_jobs.conversion_run import convert
from beam_jobs.run.launch import Launch
from beam_jobs.run.prism import find_prism
from beam_jobs.run.runner import parse_beam_flags
from tests.beam_jobs.run.test_progress import on_a_terminal
from tests.beam_jobs.run.test_runner import NO_FREEZE
from tests.helpers.forked import Forked
from tests.helpers.pictures import digests, make_pictures
from tests.helpers.processes import ROOT, assert_nobody_is_left, is_running, running_worker_pool, wait_for
from tpudata.errors import OutputError, TpudataError, UsageError
from tpudata.format import open_dataset
from tpudata.storage.claims.claim import JOB, Claim

PICTURES = 360
SHARDS = 60
# Prism reports what a step has counted every tenth of a second.
MANY = 5 * PICTURES
# Seconds in which an interrupted run has ended on a busy machine, too.
SOON = 60
REPORTS_OFTEN = """
import sys
from beam_jobs.run.launch import Launch
from tests.beam_jobs.run.test_prism import launch_images
report = lambda line: print("tpudata:", line, file=sys.stderr, flush=True)
launch_images(sys.argv[1:], Launch(report, reports_counters=True, poll_seconds=0.01))
"""


def launch_images(argv: list[str], launch: Launch) -> None:
    """Convert images as the command does, with another launch."""
    flags, beam_options = parse_flags(images.new_parser("tpudata"), argv)
    with images.prepare(flags, beam_options) as conversion:
        convert(conversion, beam_options, launch)


@pytest.fixture(scope="session")
def binary() -> Path:
    """Prism's binary; building it takes minutes, once."""
    try:
        return find_prism()
    except UsageError as error:
        pytest.skip(f"no Prism: {error}")


@pytest.fixture(scope="module")
def prism(binary: Path) -> list[str]:
    return ["--runner=prism", f"--prism_location={binary}"]


def serves(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture(scope="module")
def server(binary: Path) -> Iterator[str]:
    """A server of Prism that these tests do not start through a job, so that jobs outlive the process that submits them."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = int(taken.getsockname()[1])
    command = [str(binary), f"--job_port={port}", "--serve_http=false", "--log_level=error"]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        wait_for(lambda: serves(port))
        yield f"localhost:{port}"
        process.kill()


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_pictures(tmp_path_factory.mktemp("pictures") / "in", PICTURES)


@pytest.fixture(scope="module")
def many(pictures: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same pictures several times."""
    folder = tmp_path_factory.mktemp("many") / "in"
    for copy in range(MANY // PICTURES):
        for path in pictures.rglob("*.*"):
            (folder / path.parent.name).mkdir(parents=True, exist_ok=True)
            os.link(path, folder / path.parent.name / f"{copy}-{path.name}")
    return folder


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """72 pictures, and two files that are none."""
    folder = make_pictures(tmp_path_factory.mktemp("few") / "in", 72)
    for name in ("cat/x.jpg", "eel/y.png"):
        (folder / name).write_bytes(b"no picture")
    return folder


@pytest.fixture(scope="module")
def here(pictures: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The dataset of the local runner."""
    output = tmp_path_factory.mktemp("here") / "out"
    assert images.run(argv(pictures, output)) == 0
    return digests(output)


@pytest.fixture(scope="module")
def pool_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("elsewhere")


@pytest.fixture(scope="module")
def pool(pool_folder: Path) -> Iterator[str]:
    """Workers outside of this process, in another folder."""
    with running_worker_pool(pool_folder, {**os.environ, "PYTHONPATH": str(ROOT)}) as port:
        yield f"localhost:{port}"


def argv(source: Path, output: Path, *flags: str) -> list[str]:
    return [f"--input={source}", f"--output={output}", f"--num-shards={SHARDS}", *flags]


def external(pool: str) -> list[str]:
    return ["--environment_type=EXTERNAL", f"--environment_config={pool}", NO_FREEZE]


def elsewhere(server: str, pool: str) -> list[str]:
    """Flags of a job that goes on without the process that submits it."""
    return ["--runner=PortableRunner", f"--job_endpoint={server}", *external(pool)]


def shards(output: Path) -> int:
    return len([*output.glob("*.tfrecord")])


def start(*flags: str) -> Forked:
    return Forked("-m", "tpudata", "convert", "images", *flags, leads_group=True)


def children(pid: int) -> list[int]:
    # Of each thread of the process, which may end meanwhile.
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(word) for task in tasks for word in task.read_text().split()]


def worker_of(pool: str) -> int:
    """Return the process id of the worker that a pool has started."""
    port = pool.partition(":")[2]
    for process in children(os.getpid()):
        if f"--service_port={port}".encode() in Path(f"/proc/{process}/cmdline").read_bytes():
            # One that was killed stays until the pool asks for it.
            (worker,) = [child for child in children(process) if is_running(child)]
            return worker
    raise AssertionError(pool)


@pytest.mark.cases(1)
@pytest.mark.parametrize(
    "kind",
    [
        *("shuffled", "packed"),
        # tests/beam_jobs/run/test_runner.py has a listed one.
        *(pytest.param(kind, marks=pytest.mark.matrix) for kind in ("listed", "text", "documents", "tokens")),
    ],
)
def test_prism_writes_the_bytes_of_the_local_runner(
    kind: str, prism: list[str], few: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chance = random.Random(0)
    lines = [" ".join(chance.choices(["alpha", "beta", "gamma", "delta"], k=chance.randint(1, 9))) for _ in range(900)]
    (tmp_path / "in.txt").write_text("\n".join(lines))
    pictures = [f"--input={few}", "--on-bad-record=skip", "--max-bad-records=2", "--shard-size=20kB"]
    documents = [f"--input={tmp_path}/in.txt", "--num-shards=3"]
    run, flags = {
        "shuffled": (images.run, [*pictures, "--split=train=0.7,test=0.3"]),
        "listed": (images.run, [*pictures, "--no-shuffle"]),
        "text": (text.run, documents),
        "documents": (text.run, [*documents, "--dedup"]),
        "tokens": (text.run, [*documents, "--tokenizer=bytes", "--sequence-length=64"]),
        # The vocabulary is collected from all lines, and the same document in several places is found.
        "packed": (text.run, [*documents, "--tokenizer=chars", "--sequence-length=64", "--pack", "--dedup"]),
    }[kind]
    assert run([*flags, f"--output={tmp_path}/here"]) == 0
    capsys.readouterr()
    assert run([*flags, f"--output={tmp_path}/there", *prism]) == 0
    assert capsys.readouterr().err == ""
    assert digests(tmp_path / "there") == digests(tmp_path / "here")


def test_reports_an_error_in_one_line(prism: list[str], few: Path, tmp_path: Path) -> None:
    source = Path(shutil.copytree(few, tmp_path / "in"))
    (source / "eel" / "y.png").unlink()
    with start(*argv(source, tmp_path / "out", *prism)) as job:
        assert job.wait(60) == 1
        assert [line.partition(": rejected")[0] for line in job.stderr.splitlines()] == [
            f"tpudata: error: {source}/cat/x.jpg"
        ]
        assert_nobody_is_left(job.pid)


def test_reports_a_killed_worker_and_resumes_with_the_same_bytes(
    prism: list[str],
    pool: str,
    pool_folder: Path,
    pictures: Path,
    here: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    output = tmp_path / "out"
    flags = [*prism, *external(pool)]
    with start(*argv(pictures, output, *flags)) as job:
        wait_for(lambda: shards(output) >= 5)
        os.kill(worker_of(pool), signal.SIGKILL)
        assert job.wait(60) == 1
        (line,) = job.stderr.splitlines()
    assert "a worker was lost" in line
    assert line.endswith("Run again with --resume to convert the rest.")
    assert 5 <= shards(output) < SHARDS
    shutil.copytree(output, tmp_path / "copy")
    # A relative path means the same to workers in another folder.
    monkeypatch.chdir(tmp_path)
    assert images.run(argv(pictures, Path("out"), "--resume", *flags)) == 0
    assert digests(output) == here
    assert not list(pool_folder.iterdir())
    assert images.run(argv(pictures, tmp_path / "copy", "--resume")) == 0
    assert digests(tmp_path / "copy") == here


# The command, whose last shard is not written before a test on a busy machine has seen the first ones.
SLOWLY = """
import sys, time
from tpudata.cli import main
from tpudata.storage import LocalStorage

create = LocalStorage.create

def create_slowly(self, path, **options):
    time.sleep(0.2 * path.endswith(".tfrecord"))
    return create(self, path, **options)

LocalStorage.create = create_slowly
sys.argv[1:1] = ["convert", "images"]
sys.exit(main())
"""


def test_a_stopped_run_leaves_no_engine_and_can_be_resumed(
    prism: list[str], pictures: Path, here: dict[str, str], tmp_path: Path
) -> None:
    output = tmp_path / "out"
    for number, code, said in ((signal.SIGINT, 130, "tpudata: interrupted\n"), (signal.SIGKILL, -9, "")):
        # The first run may write more than it has to.
        enough = shards(output) + 5
        with Forked("-c", SLOWLY, *argv(pictures, output, "--resume", *prism), leads_group=True) as job:
            wait_for(lambda enough=enough: shards(output) >= enough)  # type: ignore[misc]
            (engine,) = [process for child in children(job.pid) for process in children(child)]
            # A terminal sends Ctrl-C to all processes of the group.
            (os.killpg if number == signal.SIGINT else os.kill)(job.pid, number)
            assert job.wait(SOON) == code
            assert job.stderr == said
            wait_for(lambda engine=engine: not is_running(engine))  # type: ignore[misc]
            assert_nobody_is_left(job.pid)
        assert not (output / "manifest.json").exists()
    assert images.run(argv(pictures, output, "--resume")) == 0
    assert digests(output) == here


@pytest.mark.matrix
def test_a_detached_append_completes_without_its_process(server: str, pool: str, tmp_path: Path) -> None:
    source, flags = make_pictures(tmp_path / "in", 30), elsewhere(server, pool)
    output = tmp_path / "there"
    assert images.run([f"--input={source}", f"--output={output}"]) == 0
    shutil.copytree(output, tmp_path / "here")
    before = (output / "manifest.json").read_bytes()
    for path in make_pictures(tmp_path / "new", 30, seed=1).rglob("*.*"):
        shutil.copyfile(path, source / path.parent.name / f"new-{path.name}")
    with start(f"--input={source}", f"--output={output}", "--append", "--detach", *flags) as job:
        assert job.wait(60) == 0
        errors = job.stderr
    assert errors.endswith("is submitted, and goes on without this process\n")
    assert (output / "manifest.json").read_bytes() == before
    claim = json.loads((output / ".tpudata-claim").read_bytes())
    assert claim["job"]["endpoint"] == server
    with pytest.raises(OutputError, match=rf"another run is at work there \(.*, job {claim['job']['id']}, {server}\)"):
        images.run([f"--input={source}", f"--output={output}", "--append", *flags])
    assert images.run([f"--input={source}", f"--output={tmp_path}/here", "--append"]) == 0
    wait_for(lambda: not (output / ".tpudata-claim").exists())
    assert digests(output) == digests(tmp_path / "here")


@pytest.mark.matrix
def test_resumes_the_output_of_a_job_that_prism_does_not_know(
    server: str, pool: str, few: Path, tmp_path: Path
) -> None:
    # As one does that it had before it was restarted.
    output = tmp_path / "out"
    output.mkdir()
    job = {"runner": "PortableRunner", "id": "job-999", "where": server, "endpoint": server}
    claim = dataclasses.replace(Claim.new(JOB), pid=1, birth="", job=job)
    (output / ".tpudata-claim").write_bytes(claim.to_bytes())
    flags = [f"--input={few}", f"--output={output}", "--on-bad-record=skip", "--max-bad-records=2", "--resume"]
    assert images.run([*flags, *elsewhere(server, pool)]) == 0
    assert open_dataset(str(output)).manifest.records == 72


@pytest.mark.matrix
def test_an_interrupt_cancels_a_remote_job(
    server: str, pool: str, pictures: Path, here: dict[str, str], tmp_path: Path
) -> None:
    output, flags = tmp_path / "out", elsewhere(server, pool)
    with start(*argv(pictures, output, *flags)) as job:
        wait_for(lambda: shards(output) >= 5)
        job.send_signal(signal.SIGINT)
        assert job.wait(SOON) == 130
        lines = job.stderr.splitlines()
    assert [line.partition(" job ")[0] for line in lines] == [
        "tpudata:",
        "tpudata: cancelling",
        "tpudata:",
        "tpudata: interrupted",
    ]
    assert lines[2].endswith("has ended; run again with --resume to convert the rest")
    assert not (output / "manifest.json").exists()
    assert images.run(argv(pictures, output, "--resume")) == 0
    assert digests(output) == here


def test_a_remote_job_reports_counts_and_survives_its_launcher(
    server: str, pool: str, many: Path, tmp_path: Path
) -> None:
    def counts() -> list[tuple[int, int]]:
        found = re.findall(r"^tpudata: ([\d,]+) records?, (\d+) shards?, [\d.]+ k?M?B read$", job.stderr, re.MULTILINE)
        return [(int(records.replace(",", "")), int(shards)) for records, shards in found]

    output = tmp_path / "out"
    flags = argv(many, output, *elsewhere(server, pool))
    claim = output / ".tpudata-claim"
    with Forked("-c", REPORTS_OFTEN, *flags, leads_group=True) as job:
        # As of a job that was left, on which a run with --resume is rejected.
        wait_for(lambda: claim.exists() and b'"endpoint"' in claim.read_bytes())
        wait_for(lambda: any(0 < records < MANY for records, _ in counts()))
        job.kill()
        assert all(records <= MANY and shards <= SHARDS for records, shards in counts())
    wait_for(lambda: not claim.exists())
    assert open_dataset(str(output)).manifest.records == MANY


@pytest.mark.parametrize(
    ("name", "runner"),
    [
        ("prism", "PrismRunner"),
        ("PRISMRUNNER", "PrismRunner"),
        ("Dataflow", "DataflowRunner"),
        ("my.Runner", "my.Runner"),
    ],
)
def test_normalizes_runner_names(name: str, runner: str) -> None:
    assert parse_beam_flags([f"--runner={name}"], 1)[0].get_all_options()["runner"] == runner


@pytest.fixture
def nothing_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home and a PATH without Prism and Go; returns the folder that the PATH is."""
    for name in ("bin", "home"):
        (tmp_path / name).mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    return tmp_path / "bin"


def program(path: Path, content: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{content}\n")
    path.chmod(0o700)
    return path


def test_find_prism_names_the_install_command_without_go(nothing_installed: Path) -> None:
    with pytest.raises(
        UsageError, match=r"`go install github\.com/apache/beam/sdks/v2/go/cmd/prism@v2\.\d+\.\d+`"
    ) as found:
        find_prism()
    assert "\n" not in str(found.value)


def test_find_prism_builds_with_go_once(
    nothing_installed: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    go = program(nothing_installed / "go", '/bin/echo "$@" >>"$HOME/calls"; /bin/cp /bin/true "$GOBIN/prism"')
    built = find_prism()
    assert find_prism() == built
    assert built.parent == tmp_path / "home" / ".cache" / "tpudata"
    assert (tmp_path / "home" / "calls").read_text().startswith("install github.com/apache/beam/sdks/v2/go/cmd/prism@v")
    assert len((tmp_path / "home" / "calls").read_text().splitlines()) == len(caplog.messages) == 1
    built.unlink()
    program(go, "/bin/echo go: downloading >&2; /bin/echo 'no network' >&2; exit 1")
    with pytest.raises(UsageError, match=r"`go install .*` failed \(no network\)\. .*--prism_location=FILE"):
        find_prism()
    assert list(built.parent.iterdir()) == []


def test_find_prism_prefers_a_named_or_installed_binary(nothing_installed: Path, tmp_path: Path) -> None:
    named = program(tmp_path / "named", "true")
    assert find_prism(str(named)) == named
    named.chmod(0o600)
    with pytest.raises(UsageError, match=r"--prism_location \S+named: it is not a program"):
        find_prism(str(named))
    installed = program(nothing_installed / "prism", "true")
    assert find_prism() == installed


def test_reports_a_binary_that_does_not_start(pictures: Path, tmp_path: Path) -> None:
    other = program(tmp_path / "other", "echo this is another prism; exit 3")
    flags = ["--runner=prism", f"--prism_location={other}"]
    with pytest.raises(TpudataError, match=r"other did not start \(this is another prism\)\. Pass --prism_location"):
        images.run(argv(pictures, tmp_path / "out", *flags))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "flags",
    [
        [],
        ["--runner=prism"],
        ["--runner=PortableRunner", "--job_endpoint=embed"],
        ["--runner=PortableRunner", "--job_endpoint=host:1", "--environment_type=LOOPBACK"],
        ["--runner=FlinkRunner"],
    ],
)
def test_rejects_detach_for_jobs_that_end_with_the_process(flags: list[str], pictures: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"^--detach: a job of \w+ .* ends with this process") as found:
        images.run(argv(pictures, tmp_path / "out", "--detach", *flags))
    assert "\n" not in str(found.value)
    assert not (tmp_path / "out").exists()


def test_progress_bar_shows_counts_of_the_engine(
    prism: list[str], many: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags, launch = argv(many, tmp_path / "out", *prism), Launch(draws_bar=True, poll_seconds=0.05)
    shown = on_a_terminal(lambda: launch_images(flags, launch), monkeypatch)
    counts = [int(records.replace(",", "")) for records in re.findall(r"([\d,]+) records?, \d+ shards?", shown)]
    # They may fall for a moment: Prism counts a bundle that is at work anew when it is divided.
    assert max(counts) <= MANY
    assert any(0 < count < MANY for count in counts)


# tests/beam_jobs/test_reshard.py reshards on two workers.
@pytest.mark.matrix
def test_reshard_writes_the_same_bytes_on_prism(prism: list[str], few: Path, tmp_path: Path) -> None:
    flags = ["--compression=gzip", "--num-shards=6", "--on-bad-record=skip", "--max-bad-records=2"]
    assert images.run([f"--input={few}", f"--output={tmp_path}/d", *flags]) == 0
    flags = ["--compression=none", "--num-shards=4", "--split=train=0.5,test=0.5"]
    assert reshard.run([str(tmp_path / "d"), f"--output={tmp_path}/here", *flags]) == 0
    assert reshard.run([str(tmp_path / "d"), f"--output={tmp_path}/there", *flags, *prism]) == 0
    assert digests(tmp_path / "there") == digests(tmp_path / "here")

"""Which runner runs a job, and the errors of runners that fail.

For engines that are not here, tests read the options of the pipeline that a command would run.
"""

from __future__ import annotations

import copy
import logging
import pickle
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import DirectOptions, GoogleCloudOptions, StandardOptions

from beam_jobs import WriteTFRecordShards
from beam_jobs.images import run
from beam_jobs.run.runner import LOCAL_RUNNER, beam_flag_names, is_local, new_pipeline, parse_beam_flags
from tests.beam_jobs.pipelines import run_pipeline
from tests.helpers import forked
from tests.helpers.pictures import digests, make_pictures
from tpudata.errors import BadRecordError, MissingExtraError, SourceError, TpudataError, UsageError
from tpudata.format import open_dataset

# Beam otherwise runs `pip freeze` for each job, which takes half a second.
NO_FREEZE = "--experiments=disable_logging_submission_environment"
# Engines that come with Beam: one more next to the default, and a job server that workers reach over gRPC, as elsewhere.
OTHERS = {
    "bundles": ["--runner=apache_beam.runners.direct.direct_runner.BundleBasedDirectRunner"],
    "job server": ["--runner=PortableRunner", "--job_endpoint=embed", "--environment_type=LOOPBACK", NO_FREEZE],
}


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_pictures(tmp_path_factory.mktemp("pictures"), 48)


# tests/beam_jobs/run/test_prism.py has both.
@pytest.mark.parametrize(
    "order",
    [pytest.param([], marks=pytest.mark.matrix, id="shuffled"), pytest.param(["--no-shuffle"], id="listed")],
)
def test_every_runner_writes_the_same_bytes(pictures: Path, tmp_path: Path, order: list[str]) -> None:
    argv = ["--input", str(pictures), "--shard-size=15kB", "--split=train=0.7,test=0.3", *order]
    assert run([*argv, "--output", str(tmp_path / "here")]) == 0
    assert len(open_dataset(str(tmp_path / "here")).manifest.shard_names()) > 4
    for name, flags in OTHERS.items():
        assert run([*argv, "--output", str(tmp_path / name), *flags]) == 0
        assert digests(tmp_path / name) == digests(tmp_path / "here"), name


def test_every_runner_appends_the_same_bytes(
    pictures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = Path(shutil.copytree(pictures, tmp_path / "in"))
    argv = ["--input", str(source), "--shard-size=15kB", "--on-bad-record=skip", "--max-bad-records=2"]
    assert run([*argv, "--output", str(tmp_path / "here")]) == 0
    for name in OTHERS:
        shutil.copytree(tmp_path / "here", tmp_path / name)
    for path in make_pictures(tmp_path / "new", 9, seed=1).rglob("*.*"):
        shutil.copyfile(path, source / path.parent.name / f"new-{path.name}")
    (source / "ant").mkdir()
    (source / "ant" / "broken.png").write_bytes(b"no picture")
    assert run([*argv, "--append", "--output", str(tmp_path / "here")]) == 0
    for name, flags in OTHERS.items():
        capsys.readouterr()
        assert run([*argv, "--append", "--output", str(tmp_path / name), *flags]) == 0
        assert "9 records added" in capsys.readouterr().out
        assert digests(tmp_path / name) == digests(tmp_path / "here"), name


def test_every_runner_writes_the_same_examples(tmp_path: Path) -> None:
    for name, said in {"here": [], **OTHERS}.items():
        options, unknown = parse_beam_flags(said, 1)
        assert unknown == []
        pipeline = new_pipeline(options)
        examples = pipeline | beam.Create(range(90)) | beam.Map(lambda n: (f"{n}", {"n": n, "text": "ä" * n}))
        _ = examples | WriteTFRecordShards(tmp_path / name, num_shards=4, split="train=0.8,test=0.2")
        run_pipeline(pipeline)
        assert digests(tmp_path / name) == digests(tmp_path / "here"), name
    assert open_dataset(str(tmp_path / "here")).manifest.records == 90


def test_options_cache_views_that_their_copies_do_not_share() -> None:
    options = parse_beam_flags(["--impersonate_service_account=a", "--job_name=first"], 1)[0]
    view = options.view_as(GoogleCloudOptions)
    assert options.view_as(GoogleCloudOptions) is view
    for copied in (copy.deepcopy(options), pickle.loads(pickle.dumps(options))):
        other = copied.view_as(GoogleCloudOptions)
        other.job_name = "other"
        # Beam keeps the account out of copies.
        assert (other.impersonate_service_account, copied.get_all_options()["job_name"]) == (None, "other")
    assert (view.impersonate_service_account, view.job_name) == ("a", "first")


def test_default_runner_is_the_local_one() -> None:
    for flags in ([], ["--runner="], [f"--runner={LOCAL_RUNNER}"]):
        options, unknown = parse_beam_flags(flags, 1)
        assert (is_local(options), unknown) == (True, [])
    options, _ = parse_beam_flags([], 3)
    assert options.view_as(DirectOptions).direct_num_workers == 3
    options, unknown = parse_beam_flags(["--runner=DirectRunner", "--job_name=x", "--nope", "stray"], 1)
    assert options.view_as(StandardOptions).runner == "DirectRunner"
    assert not is_local(options)
    assert unknown == ["--nope", "stray"]
    assert {"--runner", "--job_name", "--temp_location"} <= set(beam_flag_names())


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--runner=Nope"], r"--runner=Nope: Unexpected pipeline runner.*Valid values are"),
        (["--runner=no.such.Runner"], "No module named 'no'.*full name of a class"),
        (["--runner=beam_jobs.run.runner.Nope"], "has no attribute 'Nope'.*full name of a class"),
        (["--runner=os.path"], "not callable.*full name of a class"),
        (["--runner=collections.OrderedDict"], "full name of a class"),
        (
            ["--runner=DirectRunner", "--direct_num_workers=x"],
            r"argument --direct_num_workers: invalid int value.*Beam",
        ),
    ],
)
def test_rejects_unknown_runners(flags: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        new_pipeline(parse_beam_flags(flags, 1)[0])


def test_a_missing_runner_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "apache_beam.runners.dataflow.dataflow_runner", None)
    with pytest.raises(MissingExtraError, match=r"DataflowRunner needs the \[gcp\] extra"):
        new_pipeline(parse_beam_flags(["--runner=DataflowRunner"], 1)[0])


def test_rejects_workers_for_other_runners() -> None:
    with pytest.raises(UsageError, match="DirectRunner has different flags"):
        parse_beam_flags(["--runner=DirectRunner"], 2)


class Unwell(beam.runners.runner.PipelineRunner):  # type: ignore[misc]
    """A runner that does not come up."""

    def run_pipeline(self, *_: object) -> None:
        raise RuntimeError("no server\nat example:1.")


def test_names_a_failed_runner_and_passes_on_errors_of_steps() -> None:
    def fail(step: Callable[[int], object], flags: list[str]) -> None:
        pipeline = new_pipeline(parse_beam_flags(flags, 1)[0])
        _ = pipeline | beam.Create([1]) | beam.Map(step)
        run_pipeline(pipeline)

    with pytest.raises(
        TpudataError, match=r"--runner=Unwell could not run the job: RuntimeError: no server at example:1\. See"
    ):
        fail(abs, [f"--runner={__name__}.Unwell"])
    for flags in ([], ["--runner=BundleBasedDirectRunner"]):
        with pytest.raises(Exception, match="division by zero") as found:
            fail(lambda n: n / 0, flags)
        assert not isinstance(found.value, TpudataError)


@pytest.mark.cases(1)
@pytest.mark.parametrize("name", OTHERS)
def test_every_runner_reports_a_bad_record_in_one_line(
    pictures: Path, tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    source = Path(shutil.copytree(pictures, tmp_path / "in"))
    broken = next(source.rglob("*.png"))
    broken.write_bytes(b"no picture")
    argv = [f"--input={source}", f"--output={tmp_path}/out", *OTHERS[name]]
    if name == "job server":
        # What Beam prints itself, threads and the interpreter's end included.
        done = forked.run("-m", "beam_jobs.images", *argv)
        assert done.returncode == 1
        (line,) = done.stderr.splitlines()
        assert line.startswith(f"tpudata: error: {broken}: rejected: unknown image format")
    else:
        with pytest.raises(BadRecordError, match=rf"^{broken}: rejected: unknown image format") as rejected:
            run(argv)
        assert rejected.value.source == str(broken)
        assert capsys.readouterr().err == ""
    assert not (tmp_path / "out" / "manifest.json").exists()
    shutil.rmtree(broken.parent)
    assert run([*argv, "--resume"]) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("docker", [None, "#!/bin/sh\nexit 125\n"], ids=["none", "not running"])
def test_reports_in_one_line_that_docker_started_no_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, docker: str | None
) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    if docker is not None:
        (programs / "docker").write_text(docker)
        (programs / "docker").chmod(0o700)
    monkeypatch.setenv("PATH", str(programs))
    flags = ["--runner=PortableRunner", "--job_endpoint=embed", NO_FREEZE]
    pipeline = new_pipeline(parse_beam_flags(flags, 1)[0])
    _ = pipeline | beam.Create([1])
    with pytest.raises(TpudataError, match=r"^--runner=PortableRunner runs its workers in docker.*=LOOPBACK") as found:
        run_pipeline(pipeline)
    assert "\n" not in str(found.value)


def test_tpudata_errors_of_steps_pass_through_unchanged() -> None:
    def reject(_: int) -> None:
        raise SourceError("it is not there")

    pipeline = new_pipeline(parse_beam_flags([], 1)[0])
    _ = pipeline | beam.Create([1]) | beam.Map(reject)
    with pytest.raises(SourceError) as found:
        run_pipeline(pipeline)
    assert str(found.value) == "it is not there"


def test_leaves_loggers_of_other_programs_alone(caplog: pytest.LogCaptureFixture) -> None:
    class Logs(beam.Pipeline):  # type: ignore[misc]
        def run(self, test_runner_api: object = "AUTO") -> Any:
            logging.getLogger("a.program.of.its.own").warning("while it runs")
            return super().run(test_runner_api)

    run_pipeline(Logs(LOCAL_RUNNER))
    assert "while it runs" in caplog.text

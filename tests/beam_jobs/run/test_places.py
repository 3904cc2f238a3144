"""Local paths and runners whose workers are elsewhere.

Most of the engines are not here, so tests call the functions that know them.
"""

from collections.abc import Callable
from pathlib import Path

import apache_beam as beam
import pytest

import tpudata
from beam_jobs import WriteTFRecordShards, images, text
from beam_jobs.run.places import absolute_path, sees_local_files
from beam_jobs.run.runner import new_pipeline, parse_beam_flags
from tests.helpers.pictures import make_pictures
from tpudata.errors import UsageError

DATAFLOW = ["--runner=DataflowRunner", "--project=p", "--region=r", "--temp_location=gs://b/t"]
CONTAINERS = ["--runner=PortableRunner", "--job_endpoint=localhost:1"]


@pytest.mark.parametrize(
    ("flags", "sees"),
    [
        ([], True),
        (["--runner=DirectRunner"], True),
        (["--runner=PrismRunner"], True),
        (DATAFLOW, False),
        (["--runner=apache_beam.runners.dataflow.DataflowRunner"], False),
        ([*DATAFLOW, "--environment_type=LOOPBACK"], False),
        (CONTAINERS, False),
        ([*CONTAINERS, "--environment_type=DOCKER"], False),
        ([*CONTAINERS, "--environment_type=loopback"], True),
        ([*CONTAINERS, "--environment_type=EXTERNAL"], True),
        ([*CONTAINERS, "--environment_type=PROCESS"], True),
        (["--runner=FlinkRunner"], True),
        (["--runner=FlinkRunner", "--flink_master=host:8081"], False),
        (["--runner=SparkRunner"], True),
        (["--runner=SparkRunner", "--spark_master_url=spark://host:7077"], False),
    ],
)
def test_knows_which_runners_see_local_files(flags: list[str], sees: bool) -> None:
    assert sees_local_files(parse_beam_flags(flags, 1)[0]) is sees


@pytest.mark.parametrize("flags", [DATAFLOW, CONTAINERS])
@pytest.mark.parametrize("name", ["--input", "--output"])
@pytest.mark.parametrize("command", [images.run, text.run])
def test_rejects_local_paths_before_it_writes_anything(
    command: Callable[[list[str]], int], name: str, flags: list[str], tmp_path: Path
) -> None:
    paths = {"--input": "gs://bucket/in", "--output": "gs://bucket/out", name: str(tmp_path / "local")}
    runner = flags[0].partition("=")[2]
    where = rf"^{name} {tmp_path}/local is a local path, and the workers of {runner} .*\(expected a gs:// path\)"
    with pytest.raises(UsageError, match=where):
        command([*(f"{flag}={path}" for flag, path in paths.items()), *flags])
    assert not list(tmp_path.iterdir())


def test_rejects_a_local_tokenizer_file(tmp_path: Path) -> None:
    (tmp_path / "vocab.json").write_text('["a"]')
    flags = ["--input=gs://b/in.txt", "--output=gs://b/out", f"--tokenizer=chars:{tmp_path}/vocab.json", *DATAFLOW]
    with pytest.raises(UsageError, match=r"^--tokenizer .*vocab\.json is a local path"):
        text.run(flags)


def test_functions_and_pipelines_reject_local_paths(tmp_path: Path) -> None:
    options = parse_beam_flags(CONTAINERS, 1)[0]
    for convert in (tpudata.convert_images, tpudata.convert_text, tpudata.reshard):
        with pytest.raises(UsageError, match=r"^output .* is a local path"):
            convert("gs://b/in", tmp_path / "out", beam_options=options)
    pipeline = new_pipeline(options)
    with pytest.raises(UsageError, match=r"^output .* is a local path, and the workers of PortableRunner"):
        _ = pipeline | beam.Create([("a", {"x": 1})]) | WriteTFRecordShards(tmp_path / "out")


def test_dry_run_accepts_local_paths(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_pictures(tmp_path / "in", 4)
    assert images.run([f"--input={tmp_path}/in", f"--output={tmp_path}/out", "--dry-run", *DATAFLOW]) == 0
    assert "train" in capsys.readouterr().out


def test_dry_run_accepts_local_annotations(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_pictures(tmp_path / "in", 4)
    names = [path.name for path in (tmp_path / "in").rglob("*.*")]
    rows = "".join(f"{name},8,8,a,1,1,5,5\n" for name in names)
    (tmp_path / "boxes.csv").write_text(f"filename,width,height,class,xmin,ymin,xmax,ymax\n{rows}")
    argv = [f"--input={tmp_path}/in", f"--output={tmp_path}/out", f"--annotations={tmp_path}/boxes.csv"]
    assert images.run([*argv, "--dry-run", *DATAFLOW]) == 0
    assert "train" in capsys.readouterr().out


def test_makes_file_urls_and_relative_paths_absolute() -> None:
    options = parse_beam_flags(["--runner=PrismRunner"], 1)[0]
    assert absolute_path("file:///data/a%20b", options) == "/data/a b"
    assert absolute_path("a", options) == str(Path.cwd() / "a")

"""The wheel that workers on other machines install.

The engines that install it are not here, so tests build and inspect the wheel directly.
"""

import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from apache_beam.options.pipeline_options import PipelineOptions, SetupOptions

from beam_jobs import images, text
from beam_jobs.run.package import build_wheel, describe_network_problem, ship_package
from beam_jobs.run.runner import parse_beam_flags
from tests.beam_jobs.run.test_runner import NO_FREEZE
from tests.helpers.pictures import digests, make_pictures
from tests.helpers.processes import running_worker_pool

ROOT = Path(__file__).parents[3]
DATAFLOW = ["--runner=DataflowRunner", "--project=p", "--region=r", "--temp_location=gs://b/t"]


def extra_packages(flags: list[str]) -> tuple[list[str] | None, PipelineOptions]:
    options = parse_beam_flags(flags, 1)[0]
    with ship_package(options) as used:
        found: Any = used.view_as(SetupOptions).extra_packages
        assert all(Path(path).is_file() for path in found or [])
    return found, options


@pytest.mark.parametrize("flags", [DATAFLOW, ["--runner=PortableRunner", "--job_endpoint=h:1"]])
def test_sends_the_package_to_remote_workers(flags: list[str]) -> None:
    found, options = extra_packages(flags)
    assert found is not None
    assert [Path(path).name.split("-")[0] for path in found] == ["tpudata"]
    assert not Path(found[0]).exists()  # What was submitted has a copy.
    assert options.view_as(SetupOptions).extra_packages is None


@pytest.mark.parametrize(
    "flags",
    [
        [],
        ["--runner=PrismRunner"],
        ["--runner=PortableRunner", "--environment_type=EXTERNAL"],
        [*DATAFLOW, f"--setup_file={ROOT}/setup.py"],
        [*DATAFLOW, "--sdk_container_image=gcr.io/p/image"],
        ["--runner=PortableRunner", "--environment_type=DOCKER", "--environment_config=image"],
    ],
)
def test_sends_no_package_to_workers_that_have_it(flags: list[str]) -> None:
    assert extra_packages(flags)[0] is None


def test_sends_the_users_package_next_to_tpudata(tmp_path: Path) -> None:
    own = tmp_path / "own.whl"
    own.touch()
    found, options = extra_packages([*DATAFLOW, f"--extra_package={own}", f"--setup_file={tmp_path}/setup.py"])
    assert found is not None
    assert [Path(path).name.split("-")[0] for path in found] == ["own.whl", "tpudata"]
    assert options.view_as(SetupOptions).extra_packages == [str(own)]


def test_a_passed_tpudata_wheel_replaces_the_built_one(tmp_path: Path) -> None:
    own = tmp_path / "tpudata-9.9-py3-none-any.whl"
    own.touch()
    assert extra_packages([*DATAFLOW, f"--extra_package={own}"])[0] == [str(own)]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel as pip installs it: a folder with nothing else."""
    folder = tmp_path_factory.mktemp("installed")
    wheel = build_wheel(tmp_path_factory.mktemp("wheel"))
    command = [sys.executable, "-m", "pip", "install", "--no-deps", "--no-index", "--no-compile", "--quiet"]
    done = subprocess.run(
        [*command, "--disable-pip-version-check", f"--target={folder}", str(wheel)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in folder.iterdir()) == [
        "beam_jobs",
        "tpudata",
        wheel.name.split("-py3")[0] + ".dist-info",
    ]
    return folder


def test_wheel_installs_exactly_the_files_of_the_clone(installed: Path) -> None:
    for package in ("beam_jobs", "tpudata"):
        here = {path.relative_to(ROOT): path.read_bytes() for path in (ROOT / package).rglob("*") if path.is_file()}
        here = {path: content for path, content in here.items() if "__pycache__" not in path.parts}
        there = {
            path.relative_to(installed): path.read_bytes()
            for path in (installed / package).rglob("*")
            if path.is_file()
        }
        assert there == here


@pytest.mark.matrix
def test_an_installation_builds_the_same_wheel_as_a_clone(installed: Path, tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from beam_jobs.run.package import build_wheel;"
        "import importlib.metadata as m;"
        "print(build_wheel(Path(sys.argv[1]))); print(sorted(m.requires('tpudata'), key=lambda item: 'extra ==' in item))"
    )
    environment = {**os.environ, "PYTHONPATH": str(installed), "PYTHONDONTWRITEBYTECODE": "1"}
    (tmp_path / "out").mkdir()
    command = [sys.executable, "-c", program, str(tmp_path / "out")]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    there, required = map(str.strip, done.stdout.splitlines())
    (tmp_path / "here").mkdir()
    here = build_wheel(tmp_path / "here")
    assert Path(there).name == here.name
    with zipfile.ZipFile(here) as one, zipfile.ZipFile(there) as other:
        assert one.testzip() is None
        names = [name for name in one.namelist() if "dist-info" not in name]
        assert names == [name for name in other.namelist() if "dist-info" not in name]
        assert all(one.read(name) == other.read(name) for name in names)
    always, _, extras = required.partition("extra ==")
    assert "apache-beam" in always
    assert "tensorflow" not in always[: always.rindex("', '")]
    assert "sentencepiece" in extras


@pytest.fixture
def worker_pool(installed: Path, tmp_path: Path) -> Iterator[int]:
    """Workers of a machine that has the package and what it requires, and no TensorFlow."""
    without = tmp_path / "without"
    without.mkdir()
    (without / "tensorflow.py").write_text("raise ImportError('there is no TensorFlow here')")
    environment = {**os.environ, "PYTHONPATH": f"{installed}:{without}"}
    program = "import beam_jobs, tpudata; print(beam_jobs.__file__, tpudata.__file__)"
    found = subprocess.run(
        [sys.executable, "-c", program], cwd=without, env=environment, capture_output=True, text=True, check=True
    )
    assert found.stdout.split() == [str(installed / name / "__init__.py") for name in ("beam_jobs", "tpudata")]
    with running_worker_pool(without, environment) as port:
        yield port


@pytest.mark.matrix
def test_workers_with_only_the_package_run_real_jobs(
    worker_pool: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = ["--runner=PortableRunner", "--job_endpoint=embed", "--environment_type=EXTERNAL"]
    engine += [f"--environment_config=localhost:{worker_pool}", NO_FREEZE]
    make_pictures(tmp_path / "in", 12)
    (tmp_path / "in.txt").write_text("one line\nand another\n" * 50)
    # Relative paths mean the same to workers in another folder.
    monkeypatch.chdir(tmp_path)
    for run, source, flags in (
        (images.run, "in", ["--shard-size=15kB"]),
        (text.run, "in.txt", ["--tokenizer=bytes", "--sequence-length=16", "--pack"]),
    ):
        here, there = f"{run.__module__}-here", f"{run.__module__}-there"
        # The manifest has the input as the run read it.
        assert run([f"--input={tmp_path}/{source}", f"--output={here}", *flags]) == 0
        assert run([f"--input={source}", f"--output={there}", *flags, *engine]) == 0
        assert digests(tmp_path / there) == digests(tmp_path / here)
    assert [path.name for path in (tmp_path / "without").iterdir()] == ["tensorflow.py"]


@pytest.mark.parametrize(
    ("flags", "warns"),
    [
        ([*DATAFLOW, "--no_use_public_ips"], True),
        ([*DATAFLOW, "--no_use_public_ips", "--extra_package=tpudata-9.whl"], True),
        (DATAFLOW, False),
        ([*DATAFLOW, "--use_public_ips"], False),
        ([*DATAFLOW, "--no_use_public_ips", "--sdk_container_image=gcr.io/p/tpudata"], False),
        ([*DATAFLOW, "--no_use_public_ips", "--worker_harness_container_image=gcr.io/p/tpudata"], False),
        ([*DATAFLOW, "--no_use_public_ips", "--prebuild_sdk_container_engine=cloud_build"], False),
        (["--no_use_public_ips"], False),
    ],
)
def test_warns_of_workers_that_cannot_reach_pypi(flags: list[str], warns: bool) -> None:
    problem = describe_network_problem(parse_beam_flags(flags, 1)[0])
    assert ("--sdk_container_image" in problem) == bool(problem) == warns

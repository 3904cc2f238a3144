"""Workflows, issue forms, hooks, images and the citation are valid, and agree with the scripts and the docs."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

import tpudata
from tests.helpers.markdown import ROOT

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


@pytest.mark.parametrize(
    ("schema", "files"),
    [
        ("github-workflows", [".github/workflows/tests.yml", ".github/workflows/versions.yml"]),
        ("github-issue-forms", [".github/ISSUE_TEMPLATE/bug.yml", ".github/ISSUE_TEMPLATE/dataset.yml"]),
        ("github-issue-config", [".github/ISSUE_TEMPLATE/config.yml"]),
        ("citation-file-format", ["CITATION.cff"]),
    ],
)
def test_files_match_their_schemas(schema: str, files: list[str]) -> None:
    folders = {file.rpartition("/")[0] for file in files}
    forms = {path.name for folder in folders for path in (ROOT / folder).glob("*.yml") if path.name != "config.yml"}
    assert schema.endswith(("config", "format")) or forms == {Path(file).name for file in files}
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", f"vendor.{schema}", *files]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def jobs() -> list[dict[str, Any]]:
    return [job for path in WORKFLOWS for job in yaml.safe_load(path.read_text())["jobs"].values()]


def test_workflows_run_existing_scripts() -> None:
    commands = [step["run"] for job in jobs() for step in job["steps"] if "run" in step]
    assert len(commands) >= 6
    for command in commands:
        script = ROOT / command.split()[0]
        assert script.parent.name == "scripts"
        assert script.stat().st_mode & 0o100, command


def test_workflows_test_every_allowed_python_version() -> None:
    tried = {
        step["with"]["python-version"]
        for job in jobs()
        for step in job["steps"]
        if "python-version" in step.get("with", {})
    }
    tried |= {version for job in jobs() for version in job.get("strategy", {}).get("matrix", {}).get("python", ())}
    allowed = re.findall(r'"Programming Language :: Python :: (3\.\d+)"', (ROOT / "setup.py").read_text())
    assert {version for version in tried if version[0] == "3"} == set(allowed)
    first, last = re.search(
        r"PYTHON_FIRST=(\d+) PYTHON_LAST=(\d+)", (ROOT / "scripts" / "_venv.sh").read_text()
    ).groups()  # type: ignore[union-attr]
    (matrix,) = (
        job["strategy"]["matrix"]["python"] for job in jobs() if "python" in job.get("strategy", {}).get("matrix", {})
    )
    assert matrix == [f"3.{minor}" for minor in range(int(first), int(last) + 1)]


def test_hooks_run_the_commands_of_scripts_lint() -> None:
    (repository,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    hooks = {re.sub(r"\.venv/bin/| --\S+", "", hook["entry"]) for hook in repository["hooks"]}
    lint = re.findall(r'^"\$bin/(\w+)"(.*)$', (ROOT / "scripts" / "lint").read_text(), re.MULTILINE)
    assert hooks == {re.sub(r" --\S+", "", name + words) for name, words in lint}


def test_the_docs_show_the_dataflow_image() -> None:
    image = (ROOT / "configs" / "dataflow.Dockerfile").read_text()
    page = (ROOT / "docs" / "convert" / "dataflow.md").read_text()
    assert "".join(f"    {line}\n" for line in image.splitlines()) in page
    setup = (ROOT / "setup.py").read_text()
    least = re.search(r'"apache-beam>=([\d.]+),<(\d+)"', setup)
    beam = re.search(r"FROM apache/beam_python3\.11_sdk:([\d.]+)", image)
    assert least
    assert beam
    assert [int(part) for part in beam[1].split(".")] >= [int(part) for part in least[1].split(".")]


def test_the_citation_has_the_version() -> None:
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == tpudata.__version__


def test_the_dev_container_makes_the_scripts_environment() -> None:
    container = json.loads((ROOT / ".devcontainer" / "devcontainer.json").read_text())
    assert container["postCreateCommand"] == "bash -c '. scripts/_venv.sh && ensure_venv .venv dev'"
    assert (ROOT / ".devcontainer" / container["build"]["dockerfile"]).is_file()

"""scripts/release, in a separate clone."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MADE = shutil.ignore_patterns(".*", "__pycache__", "*.egg-info", "build", "dist", "site", "tests", "docs")


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with one commit, whose environment is the tests' own."""
    clone = tmp_path_factory.mktemp("release") / "clone"
    shutil.copytree(ROOT, clone, ignore=MADE)
    shutil.copyfile(ROOT / ".gitignore", clone / ".gitignore")
    # It is up to date.
    (clone / "scripts" / "_venv.sh").write_text('fail() { echo "${0##*/}: $*" >&2; exit 1; }\nensure_venv() { :; }\n')
    log = (
        "# Changelog\n\n## [Unreleased]\n\n### Added\n\n- A thing.\n\n## [0.0.1] - 2026-01-01\n\n### Added\n\n- All.\n"
    )
    (clone / "CHANGELOG.md").write_text(log)
    git(clone, "init", "--quiet", "--initial-branch=main")
    git(clone, "add", "--all")
    git(clone, "commit", "--quiet", "--message=All")
    return clone


def git(folder: Path, *words: str) -> str:
    who = ["-c", "user.name=Somebody", "-c", "user.email=somebody@example.com"]
    return subprocess.run(["git", *who, *words], cwd=folder, check=True, capture_output=True, text=True).stdout


def release(clone: Path, *words: str) -> subprocess.CompletedProcess[str]:
    people = {
        f"GIT_{role}_{what}": "somebody@example.com" for role in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")
    }
    environment = os.environ | people | {"VENV": str(Path(sys.prefix))}
    return subprocess.run(["scripts/release", *words], cwd=clone, env=environment, capture_output=True, text=True)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "pass the new version, such as 0.3.0 (got '')"),
        (["v1"], "pass the new version, such as 0.3.0 (got 'v1')"),
        (["0.0.2"], r"the new version must be above \d+\.\d+\.\d+ \(got 0.0.2\)"),
    ],
)
def test_rejects_versions_that_are_not_new(clone: Path, words: list[str], message: str) -> None:
    done = release(clone, *words)
    assert done.returncode == 1
    assert re.search(message if "\\" in message else re.escape(message), done.stderr)
    assert git(clone, "status", "--porcelain") == ""


def test_rejects_uncommitted_changes(clone: Path) -> None:
    (clone / "new").touch()
    try:
        done = release(clone, "9.0.0")
    finally:
        (clone / "new").unlink()
    assert (done.returncode, done.stderr) == (
        1,
        "release: the working tree has changes. Commit them first: git status\n",
    )


def test_writes_the_version_changelog_distributions_and_tag(clone: Path) -> None:
    done = release(clone, "9.0.0")
    assert done.returncode == 0, done.stderr
    assert {path.name for path in (clone / "dist").iterdir()} == {
        "tpudata-9.0.0-py3-none-any.whl",
        "tpudata-9.0.0.tar.gz",
    }
    assert '__version__ = "9.0.0"' in (clone / "tpudata" / "_version.py").read_text()
    assert "\nversion: 9.0.0\n" in (clone / "CITATION.cff").read_text()
    log = (clone / "CHANGELOG.md").read_text()
    assert re.search(
        r"## \[Unreleased\]\n\n## \[9\.0\.0\] - \d{4}-\d\d-\d\d\n\n### Added\n\n- A thing\.\n\n## \[0\.0\.1\]", log
    )
    assert git(clone, "describe", "--exact-match") == "v9.0.0\n"
    assert git(clone, "status", "--porcelain") == ""
    # There is nothing new to release.
    assert "lists nothing under [Unreleased]" in release(clone, "9.0.1").stderr
    assert "the tag v9.0.0 is there already" in release(clone, "9.0.0").stderr

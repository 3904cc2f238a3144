"""The source distribution, the wheel, and their page on a package index."""

from __future__ import annotations

import email
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from email.message import Message
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MADE = shutil.ignore_patterns(".git", ".venv*", "*_cache", ".hypothesis", "__pycache__", "*.egg-info", "build", "dist")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with both distributions, built from a copy of the repository: setuptools writes next to its setup.py."""
    folder = tmp_path_factory.mktemp("package")
    copy, built = folder / "copy", folder / "built"
    shutil.copytree(ROOT, copy, ignore=MADE)
    for name in ("sdist", "bdist_wheel"):
        command = [sys.executable, "setup.py", "--quiet", name, f"--dist-dir={built}"]
        subprocess.run(command, cwd=copy, check=True, capture_output=True)
    return built


@pytest.fixture(scope="module")
def page(built: Path) -> Message:
    """The metadata that an index shows."""
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return email.message_from_bytes(archive.read(name))


def test_twine_accepts_both_distributions(built: Path) -> None:
    files = sorted(map(str, built.iterdir()))
    assert len(files) == 2
    done = subprocess.run([sys.executable, "-m", "twine", "check", "--strict", *files], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_the_page_links_only_to_https(page: Message) -> None:
    text = page.get_payload()
    assert isinstance(text, str)
    assert [target for target in re.findall(r"\]\(([^)]*)\)", text) if not target.startswith("https://")] == []
    # Only links and pictures are changed.
    assert "| an old TPUEstimator program | tutorial |" in text
    assert text.count("```") == (ROOT / "README.md").read_text().count("```")


def test_the_wheel_holds_only_the_two_packages(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert {name.partition("/")[0] for name in names if ".dist-info" not in name} == {"tpudata", "beam_jobs"}
    assert {"tpudata/py.typed", "beam_jobs/py.typed", "tpudata/migrate/v1_names.txt"} <= set(names)
    # For `tpudata help`.
    pages = {f"tpudata/docs/{path.parent.name}/{path.name}" for path in (ROOT / "docs").glob("*/*.md")}
    assert {name for name in names if name.endswith(".md")} == pages


def test_the_source_distribution_holds_the_files_its_tests_need(built: Path) -> None:
    (source,) = built.glob("*.tar.gz")
    with tarfile.open(source) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    for folder in (
        "tests",
        "docs",
        "configs",
        "examples",
        "scripts",
        "beam_jobs",
        "tpudata",
        ".github",
        ".devcontainer",
    ):
        expected = {
            str(path.relative_to(ROOT))
            for path in (ROOT / folder).rglob("*")
            if path.is_file() and "__pycache__" not in path.parts
        }
        assert expected - names == set()
    assert {"setup.py", "pyproject.toml", "mkdocs.yml", "README.md", "CITATION.cff", ".gitignore", "LICENSE"} <= names


def test_classifiers_name_the_allowed_python_versions(page: Message) -> None:
    allowed = re.fullmatch(r">=3\.(\d+),<3\.(\d+)", str(page["Requires-Python"]))
    assert allowed, page["Requires-Python"]
    versions = {f"Programming Language :: Python :: 3.{minor}" for minor in range(int(allowed[1]), int(allowed[2]))}
    assert {name for name in page.get_all("Classifier", []) if re.search(r":: 3\.\d", name)} == versions


def test_the_all_extra_serves_users_and_dev_serves_developers(page: Message) -> None:
    def packages(extra: str) -> set[str]:
        lines = [line for line in page.get_all("Requires-Dist", []) if line.endswith(f'extra == "{extra}"')]
        return {re.split(r"[<>=!\[; ]", line)[0].lower() for line in lines}

    assert packages("all") == packages("tensorflow") | packages("gcp") | packages("text") | packages(
        "fsspec"
    ) | packages("annotations")
    assert packages("all") | packages("test") | packages("docs") >= packages("dev") > packages("test")
    # Its wheels are GPLv2.
    assert "pillow-heif" not in packages("all")

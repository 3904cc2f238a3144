from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tpudata.installation import format_install_command

ROOT = Path(__file__).parents[1]
METADATA = """Metadata-Version: 2.1
Name: tpudata
Version: 1.2.3
Requires-Dist: apache-beam<3,>=2.68
Requires-Dist: sentencepiece<0.3,>=0.2.3; extra == "text"
Requires-Dist: tokenizers<0.24,>=0.23; extra == 'text'
Provides-Extra: text
"""


def test_a_checkout_is_installed_from_its_own_folder() -> None:
    assert format_install_command("text") == f"pip install -e '{ROOT}[text]'"
    assert format_install_command() == f"pip install -e {ROOT}"


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The modules of the message alone, without a setup.py next to them."""
    folder = tmp_path_factory.mktemp("installed")
    (folder / "tpudata").mkdir()
    for name in ("__init__", "_version", "errors", "installation"):
        shutil.copyfile(ROOT / "tpudata" / f"{name}.py", folder / "tpudata" / f"{name}.py")
    return folder


@pytest.mark.parametrize(
    ("origin", "command"),
    [
        ({"url": "file:///home/me/clone", "dir_info": {}}, "pip install 'tpudata[text] @ file:///home/me/clone'"),
        (
            {"url": "https://host/tpudata.git", "vcs_info": {"vcs": "git", "commit_id": "abc"}},
            "pip install 'tpudata[text] @ git+https://host/tpudata.git@abc'",
        ),
        # From an index or a folder of wheels.
        (None, "pip install 'sentencepiece<0.3,>=0.2.3' 'tokenizers<0.24,>=0.23'"),
    ],
)
def test_the_command_installs_from_the_packages_origin(
    copied: Path, origin: dict[str, Any] | None, command: str
) -> None:
    notes = copied / "tpudata-1.2.3.dist-info"
    shutil.rmtree(notes, ignore_errors=True)
    notes.mkdir()
    (notes / "METADATA").write_text(METADATA)
    if origin is not None:
        (notes / "direct_url.json").write_text(json.dumps(origin))
    assert said(copied) == f"HEIC needs the [text] extra, which is not installed. Run: {command}"


def test_a_copy_without_metadata_asks_for_a_path(copied: Path) -> None:
    shutil.rmtree(copied / "tpudata-1.2.3.dist-info", ignore_errors=True)
    assert said(copied).endswith("Run: pip install 'PATH[text]', where PATH is a clone of tpudata or a wheel of it")


def said(folder: Path) -> str:
    program = "from tpudata.errors import MissingExtraError; print(MissingExtraError('HEIC', 'text'))"
    # Without the packages of this environment, tpudata among them.
    done = subprocess.run(
        [sys.executable, "-S", "-c", program],
        env={**os.environ, "PYTHONPATH": str(folder)},
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()

"""The rooms of `beam_jobs`: each imports only rooms that come before it."""

from __future__ import annotations

import collections
import subprocess
import sys
from pathlib import Path

import pytest

import beam_jobs
from tests.helpers.rooms import imports

ROOT = Path(beam_jobs.__file__).parent
MAX_MODULES = 12
# A folder or a module of beam_jobs, the lowest first.
ROOMS = (
    "file_kinds",
    "values",
    "file_names",
    "compression",
    "feature_values",
    "references",
    "annotations",
    "parquet_files",
    "converter",
    "options",
    "output",
    "run",
    "chats",
    "image_records",
    "text_files",
    "text_records",
    "sources",
    "stored_records",
    "planning",
    "append",
    "steps",
    "conversion",
    "pipeline",
    "conversion_run",
    "examples",
    "command",
    "images",
    "text",
    "reshard",
    "calls",
)
MODULES = sorted(path for path in ROOT.rglob("*.py") if path.parent != ROOT or path.stem != "__init__")


def room_of(path: Path) -> str:
    return path.relative_to(ROOT).with_suffix("").parts[0]


@pytest.mark.parametrize("path", [pytest.param(path, id=str(path.relative_to(ROOT))) for path in MODULES])
def test_imports_run_downwards(path: Path) -> None:
    names = [item.name.split(".") for item in imports(path)]
    below = {name[1] for name in names if name[0] == "beam_jobs"}
    allowed = ROOMS[: ROOMS.index(room_of(path)) + 1]
    assert below <= set(allowed)


def test_order_lists_every_room() -> None:
    assert {room_of(path) for path in MODULES} == set(ROOMS)


def test_rooms_have_at_most_12_modules() -> None:
    counts = collections.Counter(path.parent for path in MODULES if path.parent != ROOT and path.stem != "__init__")
    assert {folder: count for folder, count in counts.items() if count > MAX_MODULES} == {}


@pytest.mark.parametrize(
    ("job", "others"),
    [
        (
            "text",
            ("beam_jobs.annotations", "beam_jobs.image_records", "beam_jobs.sources.tars", "beam_jobs.stored_records"),
        ),
        ("images", ("beam_jobs.text_records", "beam_jobs.sources.text", "beam_jobs.stored_records")),
    ],
)
def test_a_job_imports_nothing_of_the_other_kinds_of_input(job: str, others: tuple[str, ...]) -> None:
    program = (
        f"import sys, beam_jobs.{job}; print(*sorted(name for name in sys.modules if name.startswith({others!r})))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []

"""A dataset to append to, converted once for a file of tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.beam_jobs.append.samples import REJECTED, Sample
from tests.helpers.pictures import make_pictures


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Sample:
    """36 pictures in three classes, converted, and two files that are none, rejected."""
    folder = tmp_path_factory.mktemp("first")
    made = Sample(make_pictures(folder / "in", 36), folder / "out")
    for name in REJECTED:
        (made.source / name).write_bytes(b"no picture")
    made.convert()
    return made


@pytest.fixture
def sample(first: Sample, tmp_path: Path) -> Sample:
    return first.copied(tmp_path)


@pytest.fixture(scope="module")
def grown(first: Sample, tmp_path_factory: pytest.TempPathFactory) -> Sample:
    """The same, grown and appended to."""
    sample = first.copied(tmp_path_factory.mktemp("grown"))
    sample.grow()
    sample.convert("--append")
    return sample

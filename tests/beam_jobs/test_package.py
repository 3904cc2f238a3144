"""What importing `beam_jobs` loads and prints."""

from __future__ import annotations

import subprocess
import sys

import pytest

import beam_jobs


def loaded(program: str) -> list[str]:
    """What a program prints, which must print no error."""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return done.stdout.split()


def test_loads_beam_lazily_and_silently() -> None:
    asked = "print('apache_beam' in sys.modules)"
    # tests/beam_jobs/test_images.py runs a job as a module.
    program = (
        f"import sys, beam_jobs, tpudata.images.check, tpudata.cli.verify; {asked};"
        f"from beam_jobs import WriteTFRecordShards as it; {asked}; print(it.__name__)"
    )
    assert loaded(program) == ["False", "True", "WriteTFRecordShards"]


def test_keeps_warnings_of_the_root_logger() -> None:
    program = "import sys, logging, beam_jobs; logging.basicConfig(stream=sys.stdout); logging.warning('mine')"
    assert loaded(program) == ["WARNING:root:mine"]


def test_lists_public_names_and_rejects_others() -> None:
    assert "WriteTFRecordShards" in dir(beam_jobs)
    with pytest.raises(AttributeError, match="module 'beam_jobs' has no attribute 'Other'"):
        _ = beam_jobs.Other

"""A dataset that changes while it is resharded.

The change comes between two reads of one run, so the test opens the object that a job sends to its workers.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from beam_jobs.stored_records.stored_files import StoredDataset
from tests.helpers.datasets import write_dataset
from tpudata.errors import DatasetError
from tpudata.format import Feature, open_dataset
from tpudata.format.manifest.manifest import MANIFEST_NAME


def dataset(folder: Path, shards: int) -> str:
    records = [{"n": number} for number in range(shards)]
    write_dataset(str(folder), {"train": records}, [Feature("n", "int64", "int64")], layout="examples", shards=shards)
    return str(folder)


def test_rejects_a_dataset_that_changes_during_the_run(tmp_path: Path) -> None:
    stored = StoredDataset.from_dataset(open_dataset(dataset(tmp_path / "in", 2)))
    manifest = tmp_path / "in" / MANIFEST_NAME
    before = manifest.read_bytes()
    manifest.write_bytes(before.replace(b"examples", b"exemples"))
    with pytest.raises(DatasetError):
        stored.open()
    dataset(tmp_path / "other", 3)
    manifest.write_bytes((tmp_path / "other" / MANIFEST_NAME).read_bytes())
    with pytest.raises(DatasetError, match="the dataset was changed during the run"):
        stored.open()
    manifest.write_bytes(before)
    assert stored.open().manifest.records == 2

"""Shards of a split are compared with the manifest before they are read."""

from __future__ import annotations

import shutil
from pathlib import Path

import google_crc32c
import numpy as np
import pytest

from tests.helpers.datasets import write_dataset
from tpudata import CorruptionError, make_input_fn
from tpudata.format import Feature
from tpudata.storage import Entry, LocalStorage

FEATURES = [Feature("x", "bytes", "uint8", (4,), "raw")]


def test_rejects_swapped_shards_of_one_size_if_the_storage_lists_checksums(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = [{"x": np.uint32(number).tobytes()} for number in range(20)]
    path = write_dataset(str(tmp_path), {"train": records}, FEATURES, layout="", shards=2)
    first, second = sorted(tmp_path.glob("train-*"))
    listed = LocalStorage.list

    def with_checksums(storage: LocalStorage, folder: str) -> list[Entry]:
        """List a folder as an object store does."""
        entries = listed(storage, folder)
        return [
            e if e.is_folder else e._replace(crc32c=google_crc32c.value(Path(e.path).read_bytes())) for e in entries
        ]

    monkeypatch.setattr(LocalStorage, "list", with_checksums)
    make_input_fn(path, "train", training=True)
    shutil.copy(first, second)
    with pytest.raises(
        CorruptionError, match=rf"^{second} at byte 0: it is another file than the one that was written"
    ):
        make_input_fn(path, "train", training=True)

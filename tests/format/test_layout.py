"""Names of files."""

from __future__ import annotations

import fnmatch

import pytest

from tpudata.format import index_name, shard_name


@pytest.mark.parametrize(
    ("split", "number", "count", "name"),
    [
        ("train", 0, 12, "train-00000-of-00012"),
        ("validation", 1023, 1024, "validation-01023-of-01024"),
        ("test", 123456, 200000, "test-123456-of-200000"),
    ],
)
def test_names(split: str, number: int, count: int, name: str) -> None:
    assert shard_name(split, number, count) == f"{name}.tfrecord"
    assert index_name(shard_name(split, number, count)) == f"index/{name}.index"
    assert fnmatch.fnmatch(shard_name(split, number, count), f"{split}-*")  # The glob of tensorflow/tpu's readers.

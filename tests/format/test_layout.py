"""Names of the files of a dataset.

Parts of names are private: a dataset shows only whole names.
"""

from __future__ import annotations

import fnmatch

import pytest

from tpudata.format import index_name, shard_name
from tpudata.format.layout import (
    dali_index_name,
    is_listing_rejects,
    is_shard_name,
    keys_name,
    parse_append,
    parse_number_and_count,
    parse_prefix,
    shard_prefix,
    shard_suffix,
)


@pytest.mark.parametrize(
    ("split", "number", "count", "name"),
    [
        ("train", 0, 12, "train-00000-of-00012"),
        ("validation", 1023, 1024, "validation-01023-of-01024"),
        ("test", 123456, 200000, "test-123456-of-200000"),
    ],
)
def test_builds_and_parses_names_of_shards(split: str, number: int, count: int, name: str) -> None:
    assert shard_name(split, number, count) == f"{name}.tfrecord"
    assert parse_number_and_count(shard_name(split, number, count)) == (number, count)
    assert index_name(shard_name(split, number, count)) == f"index/{name}.index"
    assert fnmatch.fnmatch(shard_name(split, number, count), f"{split}-*")  # The glob of tensorflow/tpu's readers.


def test_builds_and_parses_names_of_compressed_shards() -> None:
    name = shard_name("train", 3, 12, shard_suffix("gzip"))
    assert name == "train-00003-of-00012.tfrecord.gz"
    assert is_shard_name(name)
    assert fnmatch.fnmatch(name, "train-*")
    assert (parse_number_and_count(name), parse_prefix(name)) == ((3, 12), "train")
    names = {index_name(name), keys_name(name), dali_index_name(name)}
    assert names == {f"index/train-00003-of-00012.{suffix}" for suffix in ("index", "keys", "idx")}
    assert not is_shard_name(f"{name}.gz")


@pytest.mark.parametrize(
    ("compression", "existing_names", "suffix"),
    [
        (None, [], ".tfrecord"),
        (None, ["train-00000-of-00001.tfrecord.gz"], ".tfrecord"),
        ("gzip", [], ".tfrecord.gz"),
        ("gzip", ["labels.txt", "train-00000-of-00001.tfrecord.gz"], ".tfrecord.gz"),
        ("gzip", ["manifest.json", "train-00000-of-00001.tfrecord"], ".tfrecord"),
    ],
)
def test_names_new_shards_like_those_in_the_folder(
    compression: str | None, existing_names: list[str], suffix: str
) -> None:
    assert shard_suffix(compression, existing_names) == suffix


@pytest.mark.parametrize(
    ("append", "prefix"), [(0, "train"), (1, "train-a001"), (42, "train-a042"), (1234, "train-a1234")]
)
def test_builds_and_parses_names_of_appended_shards(append: int, prefix: str) -> None:
    assert shard_prefix("train", append) == prefix
    name = shard_name(prefix, 7, 123456)
    assert is_shard_name(name)
    assert fnmatch.fnmatch(name, "train-*")
    assert (parse_prefix(name), parse_append(name)) == (prefix, append)
    assert keys_name(name) == f"index/{prefix}-00007-of-123456.keys"


def test_recognizes_names_of_reject_lists() -> None:
    assert is_listing_rejects("listing-0123456789abcdef.jsonl")
    # That of a shard of a split called listing, and two that lead elsewhere.
    for name in ("listing-00000-of-00001.jsonl", "../listing-00.jsonl", "listing-00.jsonl/x"):
        assert not is_listing_rejects(name)

"""RecordSource as grain's data source: samplers, worker processes and checkpoints."""

from __future__ import annotations

from typing import Any

import grain.python as grain
import numpy as np
import pytest

from tests.helpers.datasets import write_images
from tpudata import RecordSource


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> str:
    images = [np.full((2, 2, 1), number, np.uint8) for number in range(60)]
    folder = str(tmp_path_factory.mktemp("digits"))
    return write_images(
        folder, {"train": images}, {"train": [i % 10 for i in range(60)]}, shape=(2, 2, 1), layout="raw"
    ).path


def loader(digits: str, shard: int = 0, shards: int = 1, epochs: int | None = 1) -> Any:
    source = RecordSource(digits, "train")
    sampler = grain.IndexSampler(
        num_records=len(source),
        shuffle=True,
        seed=1,
        num_epochs=epochs,
        shard_options=grain.ShardOptions(shard, shards, drop_remainder=True),
    )
    batch = grain.Batch(4, drop_remainder=True)
    return grain.DataLoader(data_source=source, sampler=sampler, operations=[batch], worker_count=0)


def values(batch: Any) -> list[int]:
    assert (batch["image"][:, 0, 0, 0] % 10 == batch["label"]).all()
    return [int(value) for value in batch["image"][:, 0, 0, 0]]


def test_shards_have_every_record_once(digits: str) -> None:
    seen = [value for shard in range(3) for batch in loader(digits, shard, 3) for value in values(batch)]
    assert sorted(seen) == list(range(60)) != seen


def test_an_iterator_continues_from_its_state(digits: str) -> None:
    iterator = iter(loader(digits, epochs=None))
    for _ in range(7):
        next(iterator)
    state = iterator.get_state()
    wanted = [values(next(iterator)) for _ in range(20)]
    other = iter(loader(digits, epochs=None))
    other.set_state(state)
    assert [values(next(other)) for _ in range(20)] == wanted


def test_a_map_dataset_reads_every_record(digits: str) -> None:
    dataset = grain.MapDataset.source(RecordSource(digits, "train")).shuffle(seed=3).batch(6)
    seen = [value for batch in dataset for value in values(batch)]
    assert sorted(seen) == list(range(60)) != seen

"""RecordSource as the dataset of PyTorch's DataLoader. Skipped where PyTorch, a package of 3 GB, is not installed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.helpers.datasets import write_images
from tpudata import RecordSource

torch = pytest.importorskip("torch")


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> str:
    images = [np.full((2, 2, 1), number, np.uint8) for number in range(60)]
    folder = str(tmp_path_factory.mktemp("digits"))
    return write_images(
        folder, {"train": images}, {"train": [i % 10 for i in range(60)]}, shape=(2, 2, 1), layout="raw"
    ).path


@pytest.mark.parametrize(("workers", "context"), [(0, None), (2, "fork"), (2, "spawn")])
def test_a_shuffled_epoch_has_every_record_once(digits: str, workers: int, context: str | None) -> None:
    loader = torch.utils.data.DataLoader(
        RecordSource(digits, "train"),
        batch_size=8,
        shuffle=True,
        num_workers=workers,
        multiprocessing_context=context,
        generator=torch.Generator().manual_seed(0),
    )
    batches = list(loader)
    assert batches[0]["image"].shape == (8, 2, 2, 1)
    assert batches[0]["image"].dtype == torch.uint8
    values = torch.cat([batch["image"][:, 0, 0, 0] for batch in batches])
    labels = torch.cat([batch["label"] for batch in batches])
    assert sorted(values.tolist()) == list(range(60)) != values.tolist()
    assert (values % 10 == labels).all()


def test_distributed_sampler_reads_every_record_once(digits: str) -> None:
    source = RecordSource(digits, "train")
    seen = []
    for rank in range(3):
        sampler = torch.utils.data.distributed.DistributedSampler(
            source, num_replicas=3, rank=rank, shuffle=True, seed=1
        )
        loader = torch.utils.data.DataLoader(source, batch_size=5, sampler=sampler)
        seen += [int(value) for batch in loader for value in batch["image"][:, 0, 0, 0]]
    assert sorted(seen) == list(range(60))


def test_workers_read_a_shuffled_source(digits: str) -> None:
    shuffled = RecordSource(digits, "train").shuffle(seed=1, epochs=2, workers=2, batch_size=8, window_bytes=500)
    loader = torch.utils.data.DataLoader(shuffled, batch_size=8, num_workers=2)
    values = torch.cat([batch["image"][:, 0, 0, 0] for batch in loader]).tolist()
    assert values == [int(record["image"][0, 0, 0]) for record in shuffled]
    assert sorted(values) == sorted([*range(60)] * 2)
    rest = torch.utils.data.DataLoader(shuffled, batch_size=8, sampler=range(40, len(shuffled)), num_workers=2)
    assert torch.cat([batch["image"][:, 0, 0, 0] for batch in rest]).tolist() == values[40:]


def test_accepts_a_path_object(digits: str) -> None:
    assert len(RecordSource(Path(digits), "train")) == 60

"""The reading plan: windows and chunks are bounded in bytes wherever large records stand, and even shards keep their order.

Plans are private: the records of these shards would take gigabytes.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from tests.helpers import forked
from tests.helpers.datasets import write_dataset, write_sparse_shards
from tests.helpers.hostile import write_json
from tpudata import Reading
from tpudata.format import Feature, Manifest, Source, Split, open_dataset, shard_name, write_metadata, write_shard
from tpudata.input.dataset_ops import list_range_numbers
from tpudata.input.graph.reading.piece_plan import plan_reading
from tpudata.input.graph.reading.read_plan import ReadPlan
from tpudata.input.order.chunks import Chunks
from tpudata.input.order.training import TrainingOrder

MEBIBYTE = 1 << 20
WINDOW = 96 * MEBIBYTE
FEATURES = [Feature("x", "bytes", "string")]


def planned(folder: Path, shards: Sequence[npt.NDArray[np.int64]]) -> ReadPlan:
    """Return the plan for shards of records of these sizes, whose files are never read."""
    write_sparse_shards(folder, shards)
    return plan_of(folder)


def plan_of(folder: Path) -> ReadPlan:
    return plan_reading(open_dataset(str(folder)), "train", Reading())


def window_bytes(plan: ReadPlan, sizes: npt.NDArray[np.int64], batch_size: int = 256) -> list[int]:
    """Return the bytes of the records of each block of an epoch, which is what a host holds."""
    window = min(plan.count_window_records(None, plan.record_bytes), plan.count)
    order = TrainingOrder.make(plan.mixed_chunks, batch_size, window, 3)
    spans = order.list_block_ranges(order.find_slots(0, batch_size), 0)
    ranges = spans.map(lambda *spans: list_range_numbers(*spans)[1]).rebatch(order.num_lanes * order.turns_per_block)
    blocks = -(-len(sizes) // (order.num_lanes * order.turns_per_block))
    return [int(sizes[found].sum()) for found in itertools.islice(ranges.as_numpy_iterator(), blocks)]


SMALL, LARGE = np.full(40_000, 116), np.full(1600, MEBIBYTE)


@pytest.mark.parametrize(
    "shards",
    [
        [SMALL, LARGE],
        pytest.param([LARGE, SMALL], marks=pytest.mark.matrix),
        [np.concatenate([SMALL, LARGE])],
        pytest.param([np.concatenate([SMALL[:7], LARGE[:800], SMALL, LARGE[:800]])], marks=pytest.mark.matrix),
    ],
    ids=["small first", "large first", "one shard", "clusters"],
)
def test_bounds_the_window_where_large_records_stand_together(
    tmp_path: Path, shards: list[npt.NDArray[np.int64]]
) -> None:
    sizes = np.concatenate(shards)
    plan = planned(tmp_path, shards)
    blocks = window_bytes(plan, sizes)
    assert np.mean(blocks) < 1.2 * WINDOW
    # Chance gives some blocks more; all large records have 16 windows.
    assert max(blocks) < 2.5 * WINDOW
    chunk_bytes = np.add.reduceat(sizes, plan.mixed_chunks.firsts)
    assert chunk_bytes.max() <= 32 * MEBIBYTE
    assert np.add.reduceat(sizes, plan.chunks.firsts).max() <= 32 * MEBIBYTE


def test_a_window_of_large_records_has_at_most_one_gibibyte(tmp_path: Path) -> None:
    plan = planned(tmp_path, [np.full(900, 5 * MEBIBYTE), np.full(900, 5 * MEBIBYTE)])
    assert plan.count_window_records(None, plan.record_bytes) == 1024 // 5


@pytest.mark.parametrize("size", [842, 110_000])
def test_even_shards_have_the_order_of_earlier_versions(tmp_path: Path, size: int) -> None:
    random = np.random.default_rng(0)
    shards = [random.integers(size // 2, size * 3 // 2, 3000) for _ in range(4)]
    plan = planned(tmp_path, shards)
    # Sized by only the first shard, as in earlier versions.
    mean = int(shards[0].sum()) // 3000
    length = 1
    while length * mean < MEBIBYTE // 2 and length * 2 * 256 <= 12_000:
        length *= 2
    expected = Chunks.cut([3000] * 4, length)
    np.testing.assert_array_equal(plan.mixed_chunks.firsts, expected.firsts)
    np.testing.assert_array_equal(plan.mixed_chunks.stops, expected.stops)
    assert plan.count_window_records(None, plan.record_bytes) == max(1024, WINDOW // mean)


def test_ignores_records_in_quarantine(tmp_path: Path) -> None:
    planned(tmp_path, [SMALL[:100], LARGE[:100]])
    entry = {"crc32c": "00000000", "bytes": 9, "records": [[0, 90, "damaged"]]}
    value = {"version": 1, "checksum": "00000000", "shards": {shard_name("train", 1, 2): entry}}
    write_json(tmp_path / "index" / "quarantine.json", value)
    plan = plan_of(tmp_path)
    assert plan.sizes.mean == (100 * 116 + 10 * MEBIBYTE) // 110


def test_cuts_compressed_chunks_between_blocks(tmp_path: Path) -> None:
    records = [{"x": bytes(200)}] * 300 + [{"x": bytes(MEBIBYTE)}] * 100
    write_dataset(str(tmp_path), {"train": records}, FEATURES, layout="", shards=1, compression="gzip")
    plan = plan_of(tmp_path)
    assert plan.record_bytes == plan.sizes.mean
    assert set((plan.mixed_chunks.firsts % 64).tolist()) == {0}


_PROGRAM = """
import resource, sys
import tensorflow as tf
from tpudata import as_numpy, make_input_fn
read = make_input_fn(sys.argv[1], "train", training=True, seed=1, parse=lambda records: {"n": tf.strings.length(records)})
batches = as_numpy(read, 64)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for _ in range(10):
    next(batches)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_memory_stays_near_the_window_with_small_records_first(tmp_path: Path) -> None:
    parts = ([bytes(100)] * 20_000, [bytes(MEBIBYTE)] * 300)
    shards = tuple(write_shard(str(tmp_path), shard_name("train", n, 2), records) for n, records in enumerate(parts))
    write_metadata(
        str(tmp_path), Manifest("", {"train": Split(shards)}, tuple(FEATURES), Source("", 0, 0, ""), "tests")
    )
    done = forked.run("-c", _PROGRAM, str(tmp_path))
    assert done.returncode == 0, done.stderr
    # Two blocks and the read-ahead take 160 to 200 MB; a window sized by the first shard would hold all 300 MiB: 345 MB.
    assert int(done.stdout) < 260_000

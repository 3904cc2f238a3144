"""Seeds: of the place alone, and spread over all bits."""

from __future__ import annotations

import numpy as np

from tpudata.input.order.seeds import record_seeds


def test_seeds_of_records_are_of_the_position_alone() -> None:
    seeds = record_seeds(3, np.arange(10_000))
    assert seeds.shape == (10_000, 2)
    assert seeds.dtype == np.int32
    assert len(np.unique(seeds, axis=0)) == 10_000
    np.testing.assert_array_equal(record_seeds(3, np.array([77, 5])), seeds[[77, 5]])
    assert not (record_seeds(4, np.arange(10_000)) == seeds).all(axis=1).any()
    # Every bit is set about half of the time.
    share = np.unpackbits(seeds.view(np.uint8)).reshape(-1, 64).mean(axis=0)
    assert (np.abs(share - 0.5) < 0.03).all()

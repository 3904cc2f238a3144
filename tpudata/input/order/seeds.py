"""Seeds of what is drawn for a record or a batch: functions of the run's seed and of the place in the run alone."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tpudata.input.chunks import Integers

# What a record's seed is combined with for each use, so that no two share their draws. A user's transform has the seed itself.
# Any numbers would do; these are digits of pi.
CROP_SEED = (0x243F6A88, 0x05A308D3)
AUGMENT_SEED = (0x13198A2E, 0x03707344)
MIX_SEED = (0x24093822, 0x299F31D0)


def raw_draws(count: int, *key: int) -> npt.NDArray[np.uint64]:
    """Raw 64-bit draws of Philox, [count]; another key gives others."""
    draws: npt.NDArray[np.uint64] = np.random.Philox(np.random.SeedSequence(key)).random_raw(count)
    return draws


def record_seeds(seed: int, positions: Integers) -> npt.NDArray[np.int32]:
    """Seeds [n, 2] for what is drawn per record, from the seed and the record's position in the stream alone."""
    # The finaliser of SplitMix64 (Steele, Lea, Flood 2014): neighbouring positions get unrelated seeds.
    with np.errstate(over="ignore"):
        bits = positions.astype(np.uint64) + np.uint64(1) + (np.uint64(seed) << np.uint64(32))
        bits = bits * np.uint64(0x9E3779B97F4A7C15)
        bits = (bits ^ bits >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
        bits = (bits ^ bits >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
        bits ^= bits >> np.uint64(31)
    seeds: npt.NDArray[np.int32] = bits.view(np.int32).reshape(-1, 2)
    return seeds

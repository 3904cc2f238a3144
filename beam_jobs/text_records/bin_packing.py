"""Bin packing: which documents go together into a row."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


def best_fit_decreasing(sizes: npt.NDArray[np.int64], capacity: int) -> npt.NDArray[np.int64]:
    """Packs items into bins: the largest first, each into the fullest bin that has room for it, or else into a new one.

    At most 11/9 of the fewest possible bins, and 6/9 of one (Johnson et al., "Worst-Case Performance Bounds for Simple
    One-Dimensional Packing Algorithms", 1974); with many items of mixed sizes next to nothing is left free.

    Args:
        sizes: int64 [items], each from 1 to `capacity`.
        capacity: of a bin.

    Returns:
        int64 [items], the bin of each, counted from 0. Items of equal size are taken in order.
    """
    # Bins by their free room, and one bit for each room of which there is a bin: the smallest room that is enough is the lowest
    # bit from there on, whatever the number of bins.
    bins: list[list[int]] = [[] for _ in range(capacity + 1)]
    rooms = 0
    count = 0
    placed = []
    order = np.argsort(-sizes, kind="stable")
    for size in sizes[order].tolist():
        enough = rooms >> size
        if enough:
            room = size + (enough & -enough).bit_length() - 1
            number = bins[room].pop()
            if not bins[room]:
                rooms ^= 1 << room
        else:
            room, number = capacity, count
            count += 1
        room -= size
        # A full bin takes nothing more, since no item has size 0.
        if room:
            bins[room].append(number)
            rooms |= 1 << room
        placed.append(number)
    result = np.empty(len(sizes), np.int64)
    result[order] = placed
    return result

"""Bin packing of documents into rows."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


def best_fit_decreasing(sizes: npt.NDArray[np.int64], capacity: int) -> npt.NDArray[np.int64]:
    """Pack items into bins: the largest first, each into the fullest bin with room for it; into a new one if no bin has room.

    This takes at most 11/9 of the minimum number of bins plus 6/9 of a bin (Johnson et al., "Worst-Case Performance Bounds for
    Simple One-Dimensional Packing Algorithms", 1974); with many items of mixed sizes, almost no room is left.

    Args:
        sizes: int64 [items], each from 1 to `capacity`.
        capacity: capacity of a bin.

    Returns:
        int64 [items], the bin of each, counted from 0. Items of equal size are taken in order.
    """
    # `bins_by_room` lists bins by free room, and `room_bits` has a bit for each room with bins. Its lowest set bit from the size of
    # an item on is thus the smallest sufficient room. Items of equal size are placed together: a bin that takes one of them is also
    # the fullest for the next, until it is full.
    bins_by_room: list[list[int]] = [[] for _ in range(capacity + 1)]
    room_bits = 0
    bin_count = 0
    # Bins of the items, from the largest item on.
    bin_of_sorted: list[int] = []
    order = np.argsort(-sizes, kind="stable")
    negative_sizes, item_counts = np.unique(-sizes, return_counts=True)
    for size, unplaced_count in zip((-negative_sizes).tolist(), item_counts.tolist(), strict=True):
        while unplaced_count:
            sufficient_bits = room_bits >> size
            lowest_bit = sufficient_bits & -sufficient_bits
            # Without a bin of sufficient room, new bins are used.
            room = size + lowest_bit.bit_length() - 1 if sufficient_bits else capacity
            # How many items of this size each bin takes, and the room that it then has.
            items_per_bin, free_room = divmod(room, size)
            used_bin_count = -(-unplaced_count // items_per_bin)
            if sufficient_bits:
                used_bin_count = min(used_bin_count, len(bins_by_room[room]))
                # The bins listed last, from the end on.
                filled_bins = bins_by_room[room][: -used_bin_count - 1 : -1]
                del bins_by_room[room][-used_bin_count:]
                if not bins_by_room[room]:
                    room_bits ^= 1 << room
            else:
                filled_bins = list(range(bin_count, bin_count + used_bin_count))
                bin_count += used_bin_count
            placed_count = min(unplaced_count, used_bin_count * items_per_bin)
            if items_per_bin == 1:
                bin_of_sorted += filled_bins
            else:
                bin_of_sorted += np.repeat(filled_bins, items_per_bin)[:placed_count].tolist()
            unplaced_count -= placed_count
            # The last bin may have room for more of this size. Full bins are not listed: no item has size 0.
            last_room = room - size * (placed_count - (used_bin_count - 1) * items_per_bin)
            for new_room, bins in ((free_room, filled_bins[:-1]), (last_room, filled_bins[-1:])):
                if new_room and bins:
                    bins_by_room[new_room] += bins
                    room_bits |= 1 << new_room
    bin_of_item = np.empty(len(sizes), np.int64)
    bin_of_item[order] = bin_of_sorted
    return bin_of_item

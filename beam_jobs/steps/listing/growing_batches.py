"""Batches of items that grow: a few items are spread over all workers, and many items make few elements of the PCollection."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

# The size doubles after this many batches, while it is below this many items.
_EQUAL_BATCHES, _ENOUGH_ITEMS = 128, 64


def batch_growing(items: Iterable[Any], first_size: int) -> Iterator[list[Any]]:
    """Yield items in lists: 128 lists of `first_size` items, then 128 of twice as many, and so on; the last list contains the rest.

    Lists stop growing once they have 64 items or more.
    """
    size = first_size
    batch, batch_count = list[Any](), 0
    for item in items:
        batch.append(item)
        if len(batch) >= size:
            yield batch
            batch, batch_count = [], batch_count + 1
            if batch_count == _EQUAL_BATCHES and size < _ENOUGH_ITEMS:
                size, batch_count = 2 * size, 0
    if batch:
        yield batch

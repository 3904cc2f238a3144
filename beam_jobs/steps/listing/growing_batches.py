"""Batches of items that grow: a few items are spread over all workers, and many cost few elements."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

# The size doubles after this many batches, up to the second number of items.
_EQUAL_BATCHES, _MAX_ITEMS = 128, 64


def batch_growing(items: Iterable[Any], size: int) -> Iterator[list[Any]]:
    """Yield items in lists: the first ones of `size` items, later ones of more, and the last of those that remain."""
    batch, batches = list[Any](), 0
    for item in items:
        batch.append(item)
        if len(batch) >= size:
            yield batch
            batch, batches = [], batches + 1
            if batches == _EQUAL_BATCHES and size < _MAX_ITEMS:
                size, batches = 2 * size, 0
    if batch:
        yield batch

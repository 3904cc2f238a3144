"""Elements of several items: few items are spread over all workers, and many cost few elements."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

# This many elements have one item, as many have two, and so on.
_EQUAL_ELEMENTS, _MOST_ITEMS = 128, 64


def batch_growing(items: Iterable[Any], size: int) -> Iterator[list[Any]]:
    """Yield items in lists: the first of `size` items, later ones of more, the last of what is left."""
    batch, lists = list[Any](), 0
    for element in items:
        batch.append(element)
        if len(batch) >= size:
            yield batch
            batch, lists = [], lists + 1
            if lists == _EQUAL_ELEMENTS and size < _MOST_ITEMS:
                size, lists = 2 * size, 0
    if batch:
        yield batch

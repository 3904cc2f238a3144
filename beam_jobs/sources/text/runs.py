"""Runs of documents: they are listed together, and sorted by their places in the shuffled order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

import numpy as np

from beam_jobs.options import ConvertOptions
from beam_jobs.references.packs.listed_pack import ListedPack
from beam_jobs.references.packs.pack import PACK_REFERENCES

_Item = TypeVar("_Item")
_RUN_BYTES = 1 << 24


def gather_runs(
    items: Iterable[_Item], measure: Callable[[_Item], tuple[int, int]], most_documents: int
) -> Iterator[list[_Item]]:
    """Yield items together, of 16 MB or `most_documents` or somewhat more.

    Args:
        items: documents, or blocks of them.
        measure: function that returns the bytes that an item holds, and its number of documents.
        most_documents: number of documents at which a run ends.
    """
    held: list[_Item] = []
    size = count = 0
    for item in items:
        held.append(item)
        more_bytes, more_documents = measure(item)
        size, count = size + more_bytes, count + more_documents
        if size >= _RUN_BYTES or count >= most_documents:
            yield held
            held, size, count = [], 0, 0
    if held:
        yield held


def cut_run(run: ListedPack, options: ConvertOptions) -> Iterator[ListedPack]:
    """Yield a run in packs, sorted by position if the options shuffle."""
    rows = np.arange(len(run.starts))
    if options.shuffle:
        # Neither the unit nor a record's number in it decides.
        rows = np.argsort(options.order.positions(run.digests[:, 1], 0, 0), kind="stable")
    for start in range(0, len(rows), PACK_REFERENCES):
        yield run.take(rows[start : start + PACK_REFERENCES])

"""Runs of documents, which are listed together; with a shuffle, each is sorted by position."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

import numpy as np

from beam_jobs.options import ConvertOptions
from beam_jobs.references.packs.listed_pack import ListedPack
from beam_jobs.references.packs.pack import PACK_REFERENCES

_Item = TypeVar("_Item")
# Bytes from which a run ends: a worker holds the documents of a run.
_MAX_RUN_BYTES = 1 << 24


def gather_runs(
    items: Iterable[_Item], measure: Callable[[_Item], tuple[int, int]], max_documents: int
) -> Iterator[list[_Item]]:
    """Group items into runs that end once they reach 16 MiB or `max_documents`.

    Args:
        items: documents, or blocks of them.
        measure: function that returns the bytes that an item holds, and its number of documents.
        max_documents: number of documents from which a run ends.
    """
    run: list[_Item] = []
    run_bytes = run_document_count = 0
    for item in items:
        run.append(item)
        item_bytes, item_document_count = measure(item)
        run_bytes += item_bytes
        run_document_count += item_document_count
        if run_bytes >= _MAX_RUN_BYTES or run_document_count >= max_documents:
            yield run
            run, run_bytes, run_document_count = [], 0, 0
    if run:
        yield run


def divide_run(run: ListedPack, options: ConvertOptions) -> Iterator[ListedPack]:
    """Divide a run into packs of at most 4,096 documents, sorted by position if the options shuffle."""
    rows = np.arange(len(run.starts))
    if options.shuffle:
        # A shuffled position depends only on the seed and the low half of the key's digest, not on `unit_index` and `first_index`.
        positions = options.order.positions(run.digests[:, 1], unit_index=0, first_index=0)
        rows = np.argsort(positions, kind="stable")
    for start in range(0, len(rows), PACK_REFERENCES):
        yield run.take(rows[start : start + PACK_REFERENCES])

"""References take a few bytes each, in memory and between steps.

Tests measure packs directly: in a small conversion everything else takes more. test_references.py tests that packs keep all
of a reference.
"""

from __future__ import annotations

import dataclasses
import tracemalloc

from beam_jobs.references.packs.pack import Pack, pack_references
from beam_jobs.references.record_order import RecordOrder
from beam_jobs.references.reference import WHOLE_FILE, Reference
from beam_jobs.sources import Payload


@dataclasses.dataclass(frozen=True)
class Numbered(Payload):
    """A kind of bytes."""

    number: int


def test_lines_take_less_than_18_bytes_each() -> None:
    lines = [Reference(f"a.txt:{35 * n}", "train", (), "/in/a.txt", 35 * n, 34, Numbered(0)) for n in range(40_000)]
    tracemalloc.start()
    inside = [pack for pack, _ in pack_references(iter(lines), RecordOrder(shuffle=True, seed=0), 0)]
    joined = Pack.join(inside)
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept < 2 * 18 * len(lines)
    assert sum(len(pack.to_bytes()) for pack in inside) < 18 * len(lines)
    assert list(joined.references()) == lines


def test_files_take_less_than_20_bytes_each() -> None:
    items = [
        Reference(f"n01/n01_{n}.JPEG", "train", ("n01",), f"/data/train/n01/n01_{n}.JPEG", WHOLE_FILE, 110_000 + n)
        for n in range(4096)
    ]
    pack, _ = next(pack_references(items, RecordOrder(shuffle=True, seed=0), 0))
    assert len(pack.to_bytes()) < 20 * len(items)

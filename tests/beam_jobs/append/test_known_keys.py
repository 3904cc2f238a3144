"""The entries of inputs."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from beam_jobs.append.known_keys import entry, known_entries, mark_rejected
from beam_jobs.references.packs.pack import packs
from beam_jobs.references.record_order import Order
from beam_jobs.references.reference import Reference, key_digest
from tpudata.format.shards.keys import ENTRY


def reference(key: str, size: int = 1, label: str = "cat", split: str = "train") -> Reference:
    return Reference(key, split, (label,), f"/in/{key}", -1, size)


INPUTS = st.lists(st.tuples(st.integers(0, 30).map(str), st.integers(0, 3), st.booleans()), max_size=40)


def test_entries_are_of_one_size_and_end_with_what_became_of_the_input() -> None:
    kept, rejected = (entry(reference("a"), rejected) for rejected in (False, True))
    assert (len(kept), kept[:-1], kept[-1:], rejected[-1:]) == (16, rejected[:-1], b"\0", b"\1")
    assert kept[:8] == key_digest("a").to_bytes(16, "big")[:8]


@given(INPUTS)
def test_entries_of_packs_are_those_of_their_references(inputs: list[tuple[str, int, bool]]) -> None:
    references = [
        reference(f"{number}-{key}", size, label=key, split=("train", "test")[size % 2])._replace(
            features={"x": key[:1]}
        )
        for number, (key, size, _) in enumerate(inputs)
    ]
    parts = [pack for pack, _ in packs(references, Order(shuffle=True, seed=0), 0)]
    due = [entry(item, out) for item, (_, _, out) in zip(references, inputs, strict=True)]
    if parts:
        entries = known_entries(parts)
        mark_rejected(entries, [number for number, (_, _, out) in enumerate(inputs) if out])
        assert entries.dtype == ENTRY
        assert entries.tobytes() == b"".join(due)

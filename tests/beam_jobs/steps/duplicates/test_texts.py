"""Equal content has equal digests, and the smallest key stays."""

from __future__ import annotations

from pathlib import Path

import apache_beam as beam
import pytest
from apache_beam.testing.util import assert_that, equal_to
from hypothesis import given
from hypothesis import strategies as st

from beam_jobs.planning.input_counts import InputCounts
from beam_jobs.references.packs.pack import Pack, packs
from beam_jobs.references.record_order import Order
from beam_jobs.references.reference import Reference
from beam_jobs.steps.duplicates.texts import KEPT, LEFT_OUT, LeaveOutDuplicates, content_digest
from beam_jobs.text_files.document_form import PLAIN_TEXT
from beam_jobs.text_files.options import TextOptions
from tests.beam_jobs.pipelines import local_pipeline
from tpudata.storage import RequestLimits

texts = st.lists(st.text(st.sampled_from("ab \n"), max_size=3), max_size=3)


@given(texts, texts)
def test_digests_are_equal_where_texts_are(one: list[str], two: list[str]) -> None:
    assert (content_digest(one) == content_digest(two)) == (one == two)


def test_nothing_is_normalised() -> None:
    assert len({content_digest([text]) for text in ("é", "e\u0301", "É", "é ", "")}) == 5
    assert len(content_digest(["a"])) == 16


@pytest.mark.parametrize("held", [1, 1 << 16])
def test_the_smallest_key_stays_wherever_it_is(tmp_path: Path, held: int) -> None:
    # Keys by their bytes, one of them no UTF-8; a document that cannot be read is no double of another.
    data = {"b": b"x", "a": b"x", "\udcff": b"x", "c": b"yy", "B": b"yy", "d": b"z", "e": b"\xff", "f": b"\xff"}
    (tmp_path / "all").write_bytes(b"".join(data.values()))
    references, offset = [], 0
    for number, (key, some) in enumerate(data.items()):
        split = "train" if number % 2 else "test"
        references.append(Reference(key, split, (), str(tmp_path / "all"), offset, len(some), PLAIN_TEXT))
        offset += len(some)
    order = Order(True, 0)
    given = [pack.to_bytes() for part in (references[:3], references[3:]) for pack, _ in packs(part, order, 0)]
    with local_pipeline() as pipeline:
        found = pipeline | beam.Create(given) | LeaveOutDuplicates(TextOptions(), RequestLimits(), held_documents=held)
        keys = found[KEPT] | beam.FlatMap(
            lambda data: [key.encode("utf-8", "surrogateescape") for key in Pack.from_bytes(data).keys]
        )
        assert_that(keys, equal_to([b"a", b"B", b"d", b"e", b"f"]), label="kept")
        counts = [InputCounts(duplicates={"test": (2, 2)}), InputCounts(duplicates={"train": (1, 2)})]
        assert_that(found[LEFT_OUT], equal_to(counts), label="omitted")

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from beam_jobs.image_records.summary import ImageSummary

sizes = st.integers(1, 50)
images = st.lists(st.tuples(st.tuples(sizes, sizes, st.sampled_from([1, 3])), st.sampled_from(["", "GIF", "CMYK"])))


def summary_of(items: list[tuple[tuple[int, int, int], str]], start: int = 0) -> ImageSummary:
    summary = ImageSummary()
    for number, (shape, reason) in enumerate(items, start):
        summary.add(shape, f"file {number}", reason)
    return summary


@given(images, st.integers(0, 20))
def test_merging_parts_is_counting_the_whole(items: list[tuple[tuple[int, int, int], str]], cut: int) -> None:
    parts = summary_of(items[:cut])
    parts.merge(summary_of(items[cut:], len(items[:cut])))
    whole = summary_of(items)
    assert parts == whole
    assert whole.decoded_bytes == sum(h * w * c for (h, w, c), _ in items)
    assert whole.heights == ((min(s[0] for s, _ in items), max(s[0] for s, _ in items)) if items else None)
    assert sum(whole.converted.values()) == sum(bool(reason) for _, reason in items)
    shapes = list(dict.fromkeys(shape for shape, _ in items))[:2]
    assert [shape for shape, _ in whole.examples] == shapes


@given(images)
def test_json_keeps_everything(items: list[tuple[tuple[int, int, int], str]]) -> None:
    summary = summary_of(items)
    assert ImageSummary.from_json(json.loads(json.dumps(summary.to_json()))) == summary

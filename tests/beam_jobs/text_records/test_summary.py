"""Counts of text add up."""

from __future__ import annotations

import json

from beam_jobs.text_records.summary import TextSummary


def test_sums_travel_as_json() -> None:
    total = TextSummary(documents=2, decoded_bytes=8, tokens=90, padding=10, dropped=1)
    total.merge(TextSummary(1, 4, 5, 95, 0, 7))
    assert total == TextSummary(3, 12, 95, 105, 1, 7)
    assert total.real_share == 95 / 200
    assert TextSummary.from_json(json.loads(json.dumps(total.to_json()))) == total
    assert TextSummary().real_share == 1

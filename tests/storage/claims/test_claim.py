"""Claims: what is read back, and files that are not claims.

Tests damage each value of a claim; tests/beam_jobs/output/test_claim.py runs conversions.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from tpudata.storage.claims.claim import JOB, PROCESS, Claim


def test_round_trip_keeps_a_claim() -> None:
    claim = Claim.new(PROCESS)
    assert Claim.from_bytes(claim.to_bytes()) == claim
    job = dataclasses.replace(claim, ends_with=JOB, job={"id": "1", "where": "there", "endpoint": ""})
    assert Claim.from_bytes(job.to_bytes()) == job


@pytest.mark.parametrize(
    "change",
    [
        {"pid": "1"},
        {"pid": -1},
        {"pid": 2**63},
        {"run": 1},
        {"host": None},
        {"ends_with": "never"},
        {"beat": 1.5},
        {"beat": 2**63 - 1},
        {"job": []},
        {"job": {"id": "1"}},
        {"job": {"id": "1", "where": []}},
        {"more": 1},
    ],
    ids=str,
)
def test_rejects_values_of_another_kind(change: dict[str, Any]) -> None:
    value = {**json.loads(Claim.new(PROCESS).to_bytes()), **change}
    assert Claim.from_bytes(json.dumps(value).encode()) is None


@pytest.mark.parametrize("data", [b"", b"{}", b"\xff", b"[1]", b"NaN", b"[" * 100_000, b"1" * 5000])
def test_rejects_data_that_is_not_a_json_object(data: bytes) -> None:
    assert Claim.from_bytes(data) is None

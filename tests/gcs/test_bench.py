"""`tpudata bench` on gs://: the store's rates, and the share that a TPU needs."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from scripts.fake_gcs import FakeGcs
from tests.gcs.child import Child
from tests.helpers.datasets import write_images
from tests.helpers.libtpu import needs_libtpu
from tpudata.cli.bench.text import format_report

LATENCY, BANDWIDTH = 0.05, 5e6


@pytest.fixture
def filled_store(store: FakeGcs, tmp_path: Path) -> FakeGcs:
    """The store with 8 MB of images in 8 shards in gs://data/set; each answer takes 0.2 s more than its latency."""
    images = [np.full((32, 32, 1), number % 256, np.uint8) for number in range(8000)]
    write_images(str(tmp_path), {"train": images}, {"train": [0] * 8000}, shape=(32, 32, 1), layout="raw", shards=8)
    for path in tmp_path.rglob("*.*"):
        store.put("data", f"set/{path.relative_to(tmp_path)}", path.read_bytes())
    store.latency, store.bandwidth = LATENCY, BANDWIDTH
    return store


@pytest.mark.matrix
@needs_libtpu
def test_reports_the_stores_rates_and_the_tpus_demand(filled_store: FakeGcs, child: Child) -> None:
    flags = ["--streams=4", "--tpu=v5e-8", "--model=mnist_cnn", "--step-time=10", "--seconds=0.3", "--json"]
    code, printed = child("command", "bench", "gs://data/set", "--batch-size=64", *flags)
    assert code == 0, printed
    found = json.loads(printed[printed.index("{") :])
    storage, tpu = found["storage"], found["tpu"]
    assert LATENCY <= storage["latency_seconds"] < 5 * LATENCY
    assert storage["streams"] == 4
    # A shard of 1 MB takes at least two requests, one of them for its bytes.
    assert 0.2 * BANDWIDTH < storage["stream_bytes_per_second"] < BANDWIDTH
    assert 2 * storage["stream_bytes_per_second"] < storage["bytes_per_second"] < 4 * BANDWIDTH
    assert storage["cpu_seconds_per_gigabyte"] > 0
    assert storage["bytes_per_second"] == pytest.approx(found["stages"][0]["bytes_per_second"])
    assert (tpu["name"], tpu["hosts"]) == ("v5e-8", 1)
    assert tpu["compiler"].startswith("libtpu ")
    # The global batch divided by the time of a step.
    assert tpu["needed"] == pytest.approx(64 / tpu["least_seconds"])
    record = found["stages"][0]["bytes_per_second"] / found["stages"][0]["records_per_second"]
    for rate, needed in ((tpu["needed"], tpu["storage"]), (6400, found["step"]["storage"])):
        assert needed["bytes_per_second"] == pytest.approx(rate * record)
        streams = needed["bytes_per_second"] / storage["stream_bytes_per_second"]
        assert 0 <= needed["streams"] - streams < 1
        assert 0 <= needed["cores"] - needed["bytes_per_second"] * storage["cpu_seconds_per_gigabyte"] / 1e9 < 1
    text = format_report(found)
    assert "4 streams read " in text
    assert f"A v5e-8 takes at most {round(tpu['needed']):,} records/s from it, " in text
    assert f"reading=tpudata.Reading(streams={tpu['storage']['streams']})" in text

"""Numbers on several pages equal those of scripts/bench/measured.yaml, and the table of costs follows from them."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml

from tests.helpers.markdown import ROOT

MEASURED: dict[str, Any] = yaml.safe_load((ROOT / "scripts" / "bench" / "measured.yaml").read_text(encoding="utf-8"))


def _page(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


@pytest.mark.parametrize("number", MEASURED["numbers"], ids=lambda number: number["name"])
def test_pages_show_the_measured_number(number: dict[str, Any]) -> None:
    assert len(number["places"]) > 1
    for page, words in number["places"].items():
        text = " ".join(_page(page).split())
        assert " ".join(words.replace("{}", number["value"]).split()) in text, page


def test_the_table_of_costs_follows_from_the_measured_numbers() -> None:
    costs = MEASURED["costs"]
    # The cells of each row, by its first cell.
    rows = dict(re.findall(r"^\| ([^|]+?) \| (.*) \|$", _page("docs/reference/costs.md"), re.MULTILINE))
    decode_us = costs["gs_us"] + costs["local_decode_us"] - costs["local_us"]
    works = {
        "CPU hours, headers": costs["local_us"],
        "CPU hours, `--check=decode`": costs["local_decode_us"],
        "vCPU hours, headers": costs["gs_us"] / costs["share_of_a_vcpu"],
        "vCPU hours, `--check=decode`": decode_us / costs["share_of_a_vcpu"],
    }
    inputs = [costs["imagenet"], costs["ten_tb"]]
    for name, microseconds in works.items():
        hours = [data["images"] * microseconds / 3.6e9 for data in inputs]
        assert [float(cell) for cell in rows[name].split(" | ")] == [pytest.approx(hour, rel=0.05) for hour in hours]
    minutes, hours = re.findall(r"[\d.]+", rows["time on 8 cores, with decoding"])
    expected = [data["images"] * costs["local_decode_us"] / 3.6e9 / 8 for data in inputs]
    assert [float(minutes) / 60, float(hours)] == [pytest.approx(value, rel=0.1) for value in expected]
    for name, work in (("headers", "vCPU hours, headers"), ("with decoding", "vCPU hours, `--check=decode`")):
        minutes, hours = re.findall(r"[\d.]+", rows[f"time on 32 vCPUs, {name}"])
        expected = [data["images"] * works[work] / 3.6e9 / 32 for data in inputs]
        assert [float(minutes) / 60, float(hours)] == [pytest.approx(value, rel=0.1) for value in expected]
    gigabytes = re.findall(r"[\d.]+", rows["references through the shuffle, at 80 bytes"])
    expected = [data["images"] * costs["bytes_of_a_reference"] / 1e9 for data in inputs]
    assert [float(size) for size in gigabytes] == [pytest.approx(value, rel=0.05) for value in expected]
    shards = [float(cell.replace(",", "")) for cell in rows["shards of 100 MB"].split(" | ")]
    assert shards == [data["bytes"] / 100e6 for data in inputs]
    assert f"= {decode_us:,} us" in _page("docs/reference/costs.md")
    rate, decoded = (1e6 / works[work] for work in ("vCPU hours, headers", "vCPU hours, `--check=decode`"))
    assert f"it converts {rate:.0f} images a second, or {decoded:.0f} with" in " ".join(
        _page("docs/reference/costs.md").split()
    )

"""How much TensorFlow reads of an object at a time: set by commands, asked of programs."""

from __future__ import annotations

import logging
import os

import pytest

from tpudata._gcs_blocks import set_block_size, warn_of_large_blocks

VARIABLE = "GCS_READ_CACHE_BLOCK_SIZE_MB"


@pytest.mark.parametrize(
    ("value", "warns"), [(None, True), ("", True), ("64", True), ("x", True), ("8", False), ("1", False)]
)
def test_large_blocks_of_an_object_store_are_warned_of(
    value: str | None, warns: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    if value is not None:
        monkeypatch.setenv(VARIABLE, value)
    with caplog.at_level(logging.WARNING):
        warn_of_large_blocks("/data/train-00000-of-00001.tfrecord")
        assert not caplog.records
        warn_of_large_blocks("gs://b/train-00000-of-00001.tfrecord")
    assert [f"Set {VARIABLE}=1 before TensorFlow is imported" in record.getMessage() for record in caplog.records] == [
        True
    ] * warns


def test_commands_set_it_and_leave_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "4")
    set_block_size()
    assert os.environ[VARIABLE] == "4"
    monkeypatch.delenv(VARIABLE)
    set_block_size()
    assert os.environ[VARIABLE] == "1"

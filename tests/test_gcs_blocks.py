"""Variables of TensorFlow's client for gs://: set by commands, asked of programs."""

from __future__ import annotations

import logging
import os

import pytest

from tpudata._gcs_blocks import set_gcs_variables, warn_of_large_blocks

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
    set_gcs_variables()
    assert os.environ[VARIABLE] == "4"
    monkeypatch.delenv(VARIABLE)
    set_gcs_variables()
    assert os.environ[VARIABLE] == "1"


def test_commands_pass_the_project_that_pays_to_tensorflow(monkeypatch: pytest.MonkeyPatch) -> None:
    header = "GCS_ADDITIONAL_REQUEST_HEADER"
    # An entry that is deleted at the end, whatever it was.
    monkeypatch.setenv(header, "")
    monkeypatch.delenv(header)
    monkeypatch.delenv("TPUDATA_GCS_BILLING_PROJECT", raising=False)
    # A project for quota alone would bill it, and need a role, for every bucket.
    monkeypatch.setenv("GOOGLE_CLOUD_QUOTA_PROJECT", "quota")
    set_gcs_variables()
    assert header not in os.environ
    monkeypatch.setenv("TPUDATA_GCS_BILLING_PROJECT", "mine")
    set_gcs_variables()
    assert os.environ[header] == "x-goog-user-project: mine"
    monkeypatch.setenv(header, "a: b")
    set_gcs_variables()
    assert os.environ[header] == "a: b"

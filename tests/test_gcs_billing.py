"""The project billed for requests of TensorFlow's gs:// client."""

from __future__ import annotations

import os

import pytest

from tpudata._gcs_billing import set_billing_header


def test_passes_the_billing_project_to_tensorflow(monkeypatch: pytest.MonkeyPatch) -> None:
    header = "GCS_ADDITIONAL_REQUEST_HEADER"
    # Monkeypatch restores the variable even if it was unset.
    monkeypatch.setenv(header, "")
    monkeypatch.delenv(header)
    monkeypatch.delenv("TPUDATA_GCS_BILLING_PROJECT", raising=False)
    # A quota project would otherwise be billed, and need a role, for every bucket.
    monkeypatch.setenv("GOOGLE_CLOUD_QUOTA_PROJECT", "quota")
    set_billing_header()
    assert header not in os.environ
    monkeypatch.setenv("TPUDATA_GCS_BILLING_PROJECT", "mine")
    set_billing_header()
    assert os.environ[header] == "x-goog-user-project: mine"
    monkeypatch.setenv(header, "a: b")
    set_billing_header()
    assert os.environ[header] == "a: b"

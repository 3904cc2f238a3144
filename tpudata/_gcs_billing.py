"""The project that pays for requests of TensorFlow's client for gs://.

A requester-pays bucket requires a project in each request. tpudata's client takes it from the environment variable
TPUDATA_GCS_BILLING_PROJECT; TensorFlow's client sends the header in GCS_ADDITIONAL_REQUEST_HEADER, which it reads once, when
TensorFlow is loaded.
"""

from __future__ import annotations

import os

_HEADER_VARIABLE, _PROJECT_VARIABLE = "GCS_ADDITIONAL_REQUEST_HEADER", "TPUDATA_GCS_BILLING_PROJECT"


def set_billing_header() -> None:
    """Set TensorFlow's variable for this process from the user's project, if there is one, unless the user has set the variable.

    Commands call this before they load TensorFlow.
    """
    if project := os.environ.get(_PROJECT_VARIABLE, "").strip():
        os.environ.setdefault(_HEADER_VARIABLE, f"x-goog-user-project: {project}")

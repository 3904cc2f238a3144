"""The project that pays for requests of TensorFlow's client for gs://.

A bucket whose requesters pay requires a project in each request: our client takes it from TPUDATA_GCS_BILLING_PROJECT, TensorFlow's
sends GCS_ADDITIONAL_REQUEST_HEADER. TensorFlow reads its variable once, when it is loaded.
"""

from __future__ import annotations

import os

_HEADER, _PROJECT = "GCS_ADDITIONAL_REQUEST_HEADER", "TPUDATA_GCS_BILLING_PROJECT"


def set_billing_header() -> None:
    """Set TensorFlow's variable for this process to the user's project, if there is one, unless the user has set the variable.

    Commands call this before they load TensorFlow.
    """
    if project := os.environ.get(_PROJECT, "").strip():
        os.environ.setdefault(_HEADER, f"x-goog-user-project: {project}")

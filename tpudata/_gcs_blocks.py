"""Variables of TensorFlow's client for gs://: its read size, and the project that pays.

TensorFlow requests GCS_READ_CACHE_BLOCK_SIZE_MB (default 64 MB) from the place at which reading begins, and drops what is not
used. A part of a shard is 0.5 to 1 MB.

A bucket whose requesters pay requires a project in each request: our client takes it from TPUDATA_GCS_BILLING_PROJECT, TensorFlow's
sends GCS_ADDITIONAL_REQUEST_HEADER. TensorFlow reads its variables once, when it is loaded.
"""

from __future__ import annotations

import logging
import os

_VARIABLE = "GCS_READ_CACHE_BLOCK_SIZE_MB"
_HEADER, _PROJECT = "GCS_ADDITIONAL_REQUEST_HEADER", "TPUDATA_GCS_BILLING_PROJECT"
_MEGABYTES = 1
# Larger blocks cost more traffic than they save requests.
_MOST_MEGABYTES = 8

_logger = logging.getLogger(__name__)


def set_gcs_variables() -> None:
    """Set the variables for this process, unless the user has set them. Commands call this before they load TensorFlow."""
    os.environ.setdefault(_VARIABLE, str(_MEGABYTES))
    if project := os.environ.get(_PROJECT, "").strip():
        os.environ.setdefault(_HEADER, f"x-goog-user-project: {project}")


def warn_of_large_blocks(path: str) -> None:
    """Log a warning if records of gs:// would be read in large blocks, as in programs that have not set the variable."""
    value = os.environ.get(_VARIABLE, "")
    if path.startswith("gs://") and not (value.isdecimal() and 1 <= int(value) <= _MOST_MEGABYTES):
        _logger.warning(
            "%s: TensorFlow reads 64 MB from each place at which it begins (got %s=%r, expected %d). Set %s=%d before TensorFlow is"
            " imported; reading is many times slower without it.",
            path,
            _VARIABLE,
            value,
            _MEGABYTES,
            _VARIABLE,
            _MEGABYTES,
        )

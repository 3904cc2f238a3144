"""Read size of TensorFlow's client for gs://.

It asks for GCS_READ_CACHE_BLOCK_SIZE_MB of an object, by default 64 MB, wherever reading begins, and drops what is not taken. A
part of a shard is 0.5 to 1 MB. TensorFlow looks at the variable once, when it is loaded.
"""

from __future__ import annotations

import logging
import os

_VARIABLE = "GCS_READ_CACHE_BLOCK_SIZE_MB"
_MEGABYTES = 1
# More than this costs more traffic than requests save.
_MOST_MEGABYTES = 8

_logger = logging.getLogger(__name__)


def set_block_size() -> None:
    """Set it for this process, unless the user has; for our commands, before TensorFlow is loaded."""
    os.environ.setdefault(_VARIABLE, str(_MEGABYTES))


def warn_of_large_blocks(path: str) -> None:
    """Log a warning if records of an object store are to be read in large blocks; the program's environment is the user's."""
    value = os.environ.get(_VARIABLE, "")
    if path.startswith("gs://") and not (value.isdecimal() and 1 <= int(value) <= _MOST_MEGABYTES):
        _logger.warning(
            "%s: TensorFlow reads 64 MB of an object wherever it begins (got %s=%r, expected %d). Set %s=%d before TensorFlow is"
            " imported; reading is many times slower without it.",
            path,
            _VARIABLE,
            value,
            _MEGABYTES,
            _VARIABLE,
            _MEGABYTES,
        )

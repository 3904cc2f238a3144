"""Suppress informational output of TensorFlow's and Beam's loading."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import sys
import tempfile
import warnings
from collections.abc import Iterator

_LEVEL = "TF_CPP_MIN_LOG_LEVEL"
# Informational lines in the two forms of TensorFlow's C++ log, and the line that announces the log itself.
_INFORMATION = re.compile(
    rb"I\d{4} \d|\d{4}-\d\d-\d\d [\d:.]+: I |WARNING: All log messages before absl::InitializeLog"
)

# Starts of Beam's warnings about gs://. Beam's own access to gs:// is never used: tpudata.storage reads and writes there.
_ABOUT_GCP = ("apitools not found", "Failed to import GCSFileSystem")


@contextlib.contextmanager
def quiet_loading() -> Iterator[None]:
    """Drop informational lines that the body writes to stderr; write everything else when the context ends.

    TensorFlow 2.21 writes them in spite of TF_CPP_MIN_LOG_LEVEL (tensorflow/tensorflow#100442). If the user has set that variable,
    or there is no stderr, nothing is dropped; otherwise the variable is set, for later lines.
    """
    if _LEVEL in os.environ or sys.stderr is None:
        yield
        return
    # 3 logs only fatal errors: Python exceptions report other errors, and a missing GPU is not an error.
    os.environ[_LEVEL] = "3"
    sys.stderr.flush()
    saved_stderr = os.dup(2)
    with tempfile.TemporaryFile() as captured:
        # The libraries write to file descriptor 2, past sys.stderr.
        os.dup2(captured.fileno(), 2)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(saved_stderr, 2)
            os.close(saved_stderr)
            captured.seek(0)
            for line in captured:
                if not _INFORMATION.match(line):
                    os.write(2, line)


@contextlib.contextmanager
def quiet_beam_loading() -> Iterator[None]:
    """Drop warnings in the body: two of Beam's about its missing [gcp] extra, and Google's about an old version of Python.

    A runner or storage that needs the extra raises an error that names it. Only tpudata's commands use this, since
    loggers and warnings belong to the whole process.
    """

    def is_wanted(record: logging.LogRecord) -> bool:
        return not str(record.msg).startswith(_ABOUT_GCP)

    loggers = [logging.getLogger(), logging.getLogger("apache_beam.io.filesystems")]
    for logger in loggers:
        logger.addFilter(is_wanted)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "You are using a (non-supported )?Python version", FutureWarning)
            yield
    finally:
        for logger in loggers:
            logger.removeFilter(is_wanted)

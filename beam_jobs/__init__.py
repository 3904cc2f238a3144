"""Beam jobs that convert raw data into TFRecord shards: source, plan, shard, metadata. Never imports TensorFlow.

Importing this package does not load Beam; the first use of a name or a module that needs it does.
"""

from __future__ import annotations

import importlib
import logging
import warnings
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from beam_jobs.examples.write_examples import WriteTFRecordShards

__all__ = ["WriteTFRecordShards"]

_LAZY = {"WriteTFRecordShards": "beam_jobs.examples.write_examples"}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def _is_asked_for(record: logging.LogRecord) -> bool:
    # Where its [gcp] extra is not installed, Beam warns of it on the root logger as it loads. Whoever needs the extra is told by
    # the runner or the storage that does.
    return not str(record.msg).startswith("apitools not found")


logging.getLogger().addFilter(_is_asked_for)
# Google's client library warns of Python 3.10's age, which is nothing that a person here has asked about.
warnings.filterwarnings("ignore", category=FutureWarning, message="You are using a (non-supported )?Python version")

"""Beam jobs that convert raw data into TFRecord shards: source, plan, shard, metadata. Never imports TensorFlow.

Importing this package does not load Beam; the first use of a name or a module that needs it does.
"""

from __future__ import annotations

import importlib
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

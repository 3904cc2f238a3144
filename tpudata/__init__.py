"""tpudata: turns folders of files into TFRecord shards, and feeds TPUs from them.

Importing this package does not load TensorFlow; the first use of a name that needs it does.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from tpudata._version import __version__
from tpudata.errors import (
    BadRecordError,
    CorruptionError,
    DatasetError,
    FeatureError,
    MissingExtraError,
    OutputError,
    SourceError,
    StorageError,
    TpudataError,
    UsageError,
)
from tpudata.format import Dataset, Manifest, open_dataset

if TYPE_CHECKING:
    from tpudata.input import make_input_fn

__all__ = [
    "BadRecordError",
    "CorruptionError",
    "Dataset",
    "DatasetError",
    "FeatureError",
    "Manifest",
    "MissingExtraError",
    "OutputError",
    "SourceError",
    "StorageError",
    "TpudataError",
    "UsageError",
    "__version__",
    "make_input_fn",
    "open_dataset",
]

# Names whose modules load TensorFlow, and those modules.
_LAZY = {"make_input_fn": "tpudata.input"}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

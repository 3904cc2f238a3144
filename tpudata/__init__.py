"""tpudata: converts folders of files into TFRecord shards, feeds them to TPUs, and trains models on them.

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
    ServiceError,
    SourceError,
    StorageError,
    StorageUnavailableError,
    TpudataError,
    UsageError,
)
from tpudata.format import Dataset, Manifest, open_dataset

if TYPE_CHECKING:
    from tpudata.estimator import tpu_system
    from tpudata.input import (
        CentreCrop,
        CutMix,
        DataService,
        FixedLengthRecordFiles,
        Images,
        Mixture,
        MixUp,
        Normalize,
        RandAugment,
        TextLineFiles,
        TFRecordFiles,
        Tokens,
        TrainCrop,
        as_keras,
        as_numpy,
        make_input_fn,
    )
    from tpudata.source import RecordSource

__all__ = [
    "BadRecordError",
    "CentreCrop",
    "CorruptionError",
    "CutMix",
    "DataService",
    "Dataset",
    "DatasetError",
    "FeatureError",
    "FixedLengthRecordFiles",
    "Images",
    "Manifest",
    "MissingExtraError",
    "MixUp",
    "Mixture",
    "Normalize",
    "OutputError",
    "RandAugment",
    "RecordSource",
    "ServiceError",
    "SourceError",
    "StorageError",
    "StorageUnavailableError",
    "TFRecordFiles",
    "TextLineFiles",
    "Tokens",
    "TpudataError",
    "TrainCrop",
    "UsageError",
    "__version__",
    "as_keras",
    "as_numpy",
    "make_input_fn",
    "open_dataset",
    "tpu_system",
]

# Names that are imported at their first use, with their modules: most load TensorFlow, and `tpudata.source` loads Pillow.
_LAZY = {
    "CentreCrop": "tpudata.input",
    "CutMix": "tpudata.input",
    "DataService": "tpudata.input",
    "FixedLengthRecordFiles": "tpudata.input",
    "Images": "tpudata.input",
    "MixUp": "tpudata.input",
    "Mixture": "tpudata.input",
    "Normalize": "tpudata.input",
    "RandAugment": "tpudata.input",
    "RecordSource": "tpudata.source",
    "TFRecordFiles": "tpudata.input",
    "TextLineFiles": "tpudata.input",
    "Tokens": "tpudata.input",
    "TrainCrop": "tpudata.input",
    "as_keras": "tpudata.input",
    "as_numpy": "tpudata.input",
    "make_input_fn": "tpudata.input",
    "tpu_system": "tpudata.estimator",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

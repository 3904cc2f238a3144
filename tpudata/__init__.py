"""tpudata: converts folders of files into TFRecord shards, feeds them to TPUs, and trains models on them.

Importing this package loads nothing else; the first use of a name does.
"""

from __future__ import annotations

import importlib

from tpudata._version import __version__

# Type checkers take it for true. Importing `typing` would take half of the time until a command can handle a Ctrl-C.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from beam_jobs.calls import convert_images, convert_text, reshard
    from tpudata.devices.system.tpu_system import tpu_system
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
    from tpudata.input import (
        CentreCrop,
        CutMix,
        DataService,
        FixedLengthRecordFiles,
        Images,
        Mixture,
        MixUp,
        Normalize,
        Pad,
        RandAugment,
        Reading,
        TextLineFiles,
        TFRecordFiles,
        Tokens,
        TrainCrop,
        as_jax,
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
    "Pad",
    "RandAugment",
    "Reading",
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
    "as_jax",
    "as_keras",
    "as_numpy",
    "convert_images",
    "convert_text",
    "make_input_fn",
    "open_dataset",
    "reshard",
    "tpu_system",
]

# Names that are imported at their first use, with their modules: tpudata.input and tpudata.devices load TensorFlow, tpudata.format
# and tpudata.source load numpy. A command whose package takes no time to load can handle a Ctrl-C from its start.
_LAZY = {
    "BadRecordError": "tpudata.errors",
    "CentreCrop": "tpudata.input",
    "CorruptionError": "tpudata.errors",
    "CutMix": "tpudata.input",
    "DataService": "tpudata.input",
    "Dataset": "tpudata.format",
    "DatasetError": "tpudata.errors",
    "FeatureError": "tpudata.errors",
    "FixedLengthRecordFiles": "tpudata.input",
    "Images": "tpudata.input",
    "Manifest": "tpudata.format",
    "MissingExtraError": "tpudata.errors",
    "MixUp": "tpudata.input",
    "Mixture": "tpudata.input",
    "Normalize": "tpudata.input",
    "OutputError": "tpudata.errors",
    "Pad": "tpudata.input",
    "RandAugment": "tpudata.input",
    "Reading": "tpudata.input",
    "RecordSource": "tpudata.source",
    "ServiceError": "tpudata.errors",
    "SourceError": "tpudata.errors",
    "StorageError": "tpudata.errors",
    "StorageUnavailableError": "tpudata.errors",
    "TFRecordFiles": "tpudata.input",
    "TextLineFiles": "tpudata.input",
    "Tokens": "tpudata.input",
    "TpudataError": "tpudata.errors",
    "TrainCrop": "tpudata.input",
    "UsageError": "tpudata.errors",
    "as_jax": "tpudata.input",
    "as_keras": "tpudata.input",
    "as_numpy": "tpudata.input",
    "convert_images": "beam_jobs.calls",
    "convert_text": "beam_jobs.calls",
    "make_input_fn": "tpudata.input",
    "open_dataset": "tpudata.format",
    "reshard": "beam_jobs.calls",
    "tpu_system": "tpudata.devices.system",
}


# Submodules that `tpudata.NAME` imports at its first use.
_MODULES = ("errors", "format", "storage")


def __getattr__(name: str) -> Any:
    """Import a public module or name at its first use; AttributeError for other names."""
    if name in _MODULES:
        return importlib.import_module(f"{__name__}.{name}")
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

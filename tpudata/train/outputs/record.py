"""Record of a run: the full configuration, and the versions that ran it."""

from __future__ import annotations

import importlib.metadata
import json
import platform
import textwrap
from typing import Any

from tpudata._version import __version__
from tpudata.format import Dataset
from tpudata.storage import storage_for
from tpudata.train.options.train_options import TrainOptions
from tpudata.train.outputs.places import writes_model_dir

_PACKAGES = ("tensorflow", "tensorflow-tpu", "tf_keras", "keras", "numpy")


def record_run(options: TrainOptions, dataset: Dataset, params: dict[str, Any]) -> None:
    """Print the full configuration with the versions that run it, and save it in the model's folder, if the run writes there.

    The file is JSON with sorted keys: `train_config.json`, or MODE_config.json if the run does not train.

    Args:
        options: options of the run.
        dataset: the dataset that is read.
        params: params of model_fn.
    """
    import tensorflow as tf

    manifest = dataset.manifest
    record: dict[str, Any] = {
        "options": options.to_json(),
        "params": params,
        "dataset": {
            "fingerprint": manifest.source.fingerprint,
            "records": {name: split.records for name, split in manifest.splits.items()},
        },
        "devices": [device.name for device in tf.config.list_logical_devices()],
        "versions": {"tpudata": __version__, "python": platform.python_version(), **_versions()},
    }
    name = "train_config.json" if options.trains else f"{options.mode}_config.json"
    is_saved = writes_model_dir(options)
    if is_saved:
        write_json(options.model_dir, name, record)
    shown = {key: value for key, value in record["options"].items() if key != "params"}
    settings = {**shown, **{f"params.{key}": value for key, value in params.items()}}
    words = [f"{key}={json.dumps(value)}" for key, value in settings.items() if value is not None]
    versions = [f"{name} {version}" for name, version in record["versions"].items()]
    print(f"configuration, saved in {name}:" if is_saved else "configuration:")
    wrapper = textwrap.TextWrapper(
        118, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False, break_long_words=False
    )
    print(wrapper.fill(" ".join(words)))
    print(f"  {', '.join(versions)} on {', '.join(record['devices'])}\n", flush=True)


def _versions() -> dict[str, str]:
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def write_json(folder: str, name: str, value: dict[str, Any]) -> None:
    """Write a JSON object with sorted keys into a folder, whole or not at all."""
    storage = storage_for(folder)
    with storage.create(storage.join(folder, name)) as file:
        file.write((json.dumps(value, indent=1, sort_keys=True) + "\n").encode())

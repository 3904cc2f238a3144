"""Record of a run: the full configuration, and the versions that ran it."""

from __future__ import annotations

import hashlib
import json
import platform
import textwrap
from collections.abc import Mapping
from typing import Any, TypeAlias

from tpudata._version import __version__
from tpudata.format import Dataset, Manifest
from tpudata.installation import find_installed_versions
from tpudata.storage import storage_for
from tpudata.train.options.train_options import TrainOptions

_PACKAGES = ("tf_keras", "keras", "jax", "libtpu", "numpy")
CONFIG_NAME = "train_config.json"
# JSON object with the options, params, dataset, devices and versions of a run.
Configuration: TypeAlias = Mapping[str, Any]


def describe_configuration(options: TrainOptions, dataset: Dataset, params: Mapping[str, object]) -> Configuration:
    """Return the full configuration of a run, and the versions that run it, as a JSON object.

    Args:
        options: options of the run.
        dataset: the dataset that is read.
        params: params of model_fn, without those that the estimator adds.
    """
    import tensorflow as tf

    manifest = dataset.manifest
    dataset_facts: dict[str, object] = {
        "fingerprint": manifest.source.fingerprint,
        "records": {name: split.records for name, split in manifest.splits.items()},
    }
    # Only trainings are compared with earlier ones, see `is_same_data`.
    if options.trains:
        dataset_facts["split_digest"] = _hash_split(manifest, options.train_split)
        dataset_facts["kept_records"] = dataset.kept(options.train_split).records
    return {
        "options": options.to_json(),
        "params": params,
        "dataset": dataset_facts,
        "devices": [device.name for device in tf.config.list_logical_devices()],
        "versions": {
            "tpudata": __version__,
            "python": platform.python_version(),
            # From the module: the installed package may have a different name, such as tensorflow-cpu.
            "tensorflow": tf.__version__,
            **find_installed_versions(_PACKAGES),
        },
    }


def record_run(options: TrainOptions, configuration: Configuration, *, saves_file: bool) -> None:
    """Print the configuration, and save it in the model's folder if requested.

    The file is JSON with sorted keys: `train_config.json`, or MODE_config.json if the run does not train.

    Args:
        options: options of the run.
        configuration: the full configuration.
        saves_file: whether to save the file; False only prints.
    """
    name = CONFIG_NAME if options.trains else f"{options.mode}_config.json"
    if saves_file:
        write_json(options.model_dir, name, configuration)
    settings = {key: value for key, value in configuration["options"].items() if key != "params"}
    settings |= {f"params.{key}": value for key, value in configuration["params"].items()}
    setting_texts = [f"{key}={json.dumps(value)}" for key, value in settings.items() if value is not None]
    versions = [f"{package} {version}" for package, version in configuration["versions"].items()]
    print(f"configuration, saved in {name}:" if saves_file else "configuration:")
    wrapper = textwrap.TextWrapper(
        width=118, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False, break_long_words=False
    )
    print(wrapper.fill(" ".join(setting_texts)))
    print(f"  {', '.join(versions)} on {', '.join(configuration['devices'])}\n", flush=True)


def _hash_split(manifest: Manifest, split: str) -> str:
    """Return a digest that differs if the split's records, their order, or the meaning of their features differ."""
    shards = [(shard.records, shard.bytes, shard.crc32c) for shard in manifest.split(split).shards]
    features = [feature.to_json() for feature in manifest.features]
    text = json.dumps([shards, manifest.compression, features, manifest.labels_crc32c], sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def write_json(folder: str, name: str, value: Mapping[str, object]) -> None:
    """Write a JSON object with sorted keys into a folder, whole or not at all."""
    storage = storage_for(folder)
    with storage.create(storage.join(folder, name)) as file:
        file.write((json.dumps(value, indent=1, sort_keys=True) + "\n").encode())

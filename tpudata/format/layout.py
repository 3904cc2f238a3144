"""Where things stand in a dataset's folder, and what its files are called.

DIR/train-00000-of-00012.tfrecord ...    the shards
DIR/index/train-00000-of-00012.index     their indexes, see tpudata.format.index
DIR/labels.txt                           class names, a line each
DIR/dataset_info.json, features.json     TFDS metadata, see tpudata.format.tfds
DIR/manifest.json                        see tpudata.format.manifest
"""

import re

LABELS_NAME = "labels.txt"
INDEX_FOLDER = "index"
REJECTS_FOLDER = "rejects"
SHARD_SUFFIX = ".tfrecord"
# No separator and no leading dot or dash: a name is never a path, a hidden file or a flag.
_SPLIT = r"[A-Za-z0-9_][A-Za-z0-9_.-]*"
_SHARD = re.compile(rf"{_SPLIT}-[0-9]{{5,}}-of-[0-9]{{5,}}{re.escape(SHARD_SUFFIX)}")


def shard_name(split: str, number: int, count: int) -> str:
    """File name of a split's shard, such as `train-00000-of-00012.tfrecord`."""
    return f"{split}-{number:05d}-of-{count:05d}{SHARD_SUFFIX}"


def is_split_name(name: str) -> bool:
    """Whether a split may be called so: letters, digits and `_.-`, the first one neither a dot nor a dash."""
    return re.fullmatch(_SPLIT, name) is not None


def is_shard_name(name: str) -> bool:
    """Whether a name has the form of `shard_name`; one that has names a file in the dataset's own folder."""
    return _SHARD.fullmatch(name) is not None


def index_name(shard: str) -> str:
    """Path of a shard's index below the dataset's folder, such as `index/train-00000-of-00012.index`."""
    return f"{INDEX_FOLDER}/{shard.removesuffix(SHARD_SUFFIX)}.index"

"""Where things stand in a dataset's folder, and what its files are called.

DIR/train-00000-of-00012.tfrecord ...    the shards
DIR/index/train-00000-of-00012.index     their indexes, see tpudata.format.index
DIR/labels.txt                           class names, a line each
DIR/dataset_info.json, features.json     TFDS metadata, see tpudata.format.tfds
DIR/manifest.json                        see tpudata.format.manifest
"""

LABELS_NAME = "labels.txt"
INDEX_FOLDER = "index"
SHARD_SUFFIX = ".tfrecord"


def shard_name(split: str, number: int, count: int) -> str:
    """File name of a split's shard, such as `train-00000-of-00012.tfrecord`."""
    return f"{split}-{number:05d}-of-{count:05d}{SHARD_SUFFIX}"


def index_name(shard: str) -> str:
    """Path of a shard's index below the dataset's folder, such as `index/train-00000-of-00012.index`."""
    return f"{INDEX_FOLDER}/{shard.removesuffix(SHARD_SUFFIX)}.index"

"""Names of the files in a dataset's folder.

DIR/train-00000-of-00012.tfrecord ...    the shards; compressed ones end in .tfrecord.gz
DIR/train-a001-00000-of-00003.tfrecord   the shards that the first append added, and so on
DIR/index/train-00000-of-00012.index     their indexes, see tpudata.format.shards.index
DIR/index/train-00000-of-00012.keys      the keys of their inputs, see tpudata.format.shards.keys
DIR/index/train-00000-of-00012.idx       if requested, an index for NVIDIA DALI, see tpudata.format.shards.dali_index
DIR/index/quarantine.json                the damaged records that readers skip, if there are any; see tpudata.format.quarantine
DIR/rejects/train-00000-of-00012.jsonl   the inputs of a shard that were rejected, a JSON object each; no file without rejects
DIR/rejects/listing-0123456789ab.jsonl   rejected inputs that belong to no shard
DIR/labels.txt                           class names, a line each
DIR/tokenizer.model, ...                 the tokenizer's file, see tpudata.format.tokenizer_file
DIR/dataset_info.json, features.json     TFDS metadata, see tpudata.format.tfds
DIR/manifest.json                        see tpudata.format.manifest.manifest

A shard whose inputs were all rejected is not written, which leaves a gap in the numbers.

Datasets of earlier versions may have compressed shards that end in `.tfrecord`: the manifest's `compression` decides how a shard
is read, not its name. An append or a resumed run uses the ending of the shards that exist.
"""

import re
from collections.abc import Iterable

LABELS_NAME = "labels.txt"
INDEX_FOLDER = "index"
REJECTS_FOLDER = "rejects"
PLAIN_SUFFIX, GZIP_SUFFIX = ".tfrecord", ".tfrecord.gz"
SHARD_SUFFIXES = (PLAIN_SUFFIX, GZIP_SUFFIX)
# No separator and no leading dot or dash: a name is never a path, a hidden file or a flag.
_SPLIT = r"[A-Za-z0-9_][A-Za-z0-9_.-]*"
# Shards are numbered with seven digits at most, so that a loop over the numbers of a damaged name ends soon.
MAX_SHARDS = 10_000_000
_SHARD = re.compile(rf"{_SPLIT}-(?P<number>[0-9]{{5,7}})-of-(?P<count>[0-9]{{5,7}})(?P<suffix>\.tfrecord(?:\.gz)?)")
# A conversion allows no dash in the name of a split, so this is never part of a split's name.
_APPEND = re.compile(r"-a([0-9]{3,})$")
_LISTING_REJECTS = re.compile(r"listing-[0-9a-f]+\.jsonl")


def shard_name(split: str, number: int, count: int, suffix: str = PLAIN_SUFFIX) -> str:
    """Return the file name of a split's shard, such as `train-00000-of-00012.tfrecord`.

    Args:
        split: name of the split; for the shards of an append, what `shard_prefix` returns.
        number: index of the shard, from 0.
        count: planned number of shards.
        suffix: `.tfrecord`, or `.tfrecord.gz` for a compressed shard.
    """
    return f"{split}-{number:05d}-of-{count:05d}{suffix}"


def shard_suffix(compression: str | None, existing_names: Iterable[str] = ()) -> str:
    """Return the ending of the names of a dataset's shards, which is the same for all.

    Args:
        compression: compression of the shards, None or "gzip".
        existing_names: names of files in the folder. Further compressed shards get the ending of the existing ones, which in
            earlier versions was `.tfrecord`.
    """
    if compression is None:
        return PLAIN_SUFFIX
    match = next(filter(None, map(_SHARD.fullmatch, existing_names)), None)
    return GZIP_SUFFIX if match is None else match["suffix"]


def shard_stem(shard: str) -> str:
    """Return a shard's name without its ending, such as `train-00000-of-00012`."""
    return shard.removesuffix(GZIP_SUFFIX).removesuffix(PLAIN_SUFFIX)


def shard_prefix(split: str, append: int = 0) -> str:
    """Return the part of a split's shard names before the number: `train`, or `train-a001` for the first append."""
    return f"{split}-a{append:03d}" if append else split


def parse_prefix(shard: str) -> str:
    """Return the part of a shard's name before the number, as `shard_prefix` makes it."""
    return shard.rsplit("-", 3)[0]


def parse_number_and_count(shard: str) -> tuple[int, int]:
    """Return the number of a shard, from 0, and the planned number of shards: `(3, 12)` for `train-00003-of-00012.tfrecord`."""
    _, number, _, count = shard_stem(shard).rsplit("-", 3)
    return int(number), int(count)


def parse_append(shard: str) -> int:
    """Return the number of the append in a shard's name; 0 for the first conversion."""
    match = _APPEND.search(parse_prefix(shard))
    return int(match[1]) if match else 0


def is_split_name(name: str) -> bool:
    """Return whether a split's name is valid: letters, digits and `_.-`, the first one neither a dot nor a dash."""
    return re.fullmatch(_SPLIT, name) is not None


def is_shard_name(name: str) -> bool:
    """Return whether `shard_name` can return this name, with numbers of 5 to 7 digits; False for any path into another folder."""
    match = _SHARD.fullmatch(name)
    return match is not None and int(match["number"]) < int(match["count"])


def is_listing_rejects(name: str) -> bool:
    """Return whether a file in rejects/ lists inputs that belong to no shard: `listing-HEXDIGITS.jsonl`."""
    return _LISTING_REJECTS.fullmatch(name) is not None


def index_name(shard: str) -> str:
    """Return the path of a shard's index below the dataset's folder, such as `index/train-00000-of-00012.index`."""
    return f"{INDEX_FOLDER}/{shard_stem(shard)}.index"


def dali_index_name(shard: str) -> str:
    """Return the path of a shard's index for DALI below the dataset's folder, such as `index/train-00000-of-00012.idx`."""
    return f"{INDEX_FOLDER}/{shard_stem(shard)}.idx"


def keys_name(shard: str) -> str:
    """Return the path of a shard's keys below the dataset's folder, such as `index/train-00000-of-00012.keys`."""
    return f"{INDEX_FOLDER}/{shard_stem(shard)}.keys"

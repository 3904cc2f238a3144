"""Check of a manifest's JSON for the keys, types and ranges that `tpudata.format.manifest.manifest` describes.

A manifest may have been edited; without this check, readers would fail later with a TypeError, or run out of memory. Unknown keys
are allowed in the outermost object, in the options and in the tokenizer.
"""

from __future__ import annotations

import re
from typing import Any

from tpudata.checked_json import (
    CRC32C,
    FLAG,
    NULL,
    TEXT,
    WHOLE,
    Anything,
    Entries,
    Items,
    Keys,
    Plain,
)

_WHOLE_OR_NULL = Plain((int, NULL))
_NAME_AND_VERSION = Plain(
    (str, NULL),
    pattern=re.compile(r"[a-zA-Z][a-zA-Z0-9_]*:[0-9]+\.[0-9]+\.[0-9]+"),
    words="a name and version such as 'pets:1.0.0'",
)
_CRC32C_OR_NULL = Plain((str, NULL), pattern=CRC32C.pattern, words=CRC32C.words)
# An append has the next number, which must also be valid.
_APPENDS = Plain((int,), high=2**31 - 1)
_SHARD = Keys({"name": TEXT, "records": WHOLE, "bytes": WHOLE, "crc32c": CRC32C})
_SPLIT = Keys({"shards": Items(_SHARD), "decoded_bytes": WHOLE})
# A key is optional if Feature.to_json omits its default.
_FEATURE = Keys(
    {"name": TEXT, "kind": TEXT, "dtype": TEXT, "shape": Items(_WHOLE_OR_NULL)},
    {"encoding": Plain((str, NULL)), "num_classes": _WHOLE_OR_NULL, "label_offset": WHOLE},
)
_SOURCE = Keys({"input": TEXT, "files": WHOLE, "bytes": WHOLE, "fingerprint": TEXT, "ignored_files": WHOLE})
# Ids are int32.
_ID, _ID_OR_NULL = Plain((int,), high=2**31 - 1), Plain((int, NULL), high=2**31 - 1)
_TOKENIZER = Keys(
    {},
    {"name": TEXT, "vocab_size": _ID, "eos_id": _ID_OR_NULL, "pad_id": _ID, "file": TEXT, "sha256": TEXT},
    allows_unknown_keys=True,
)
# Options that readers use; only the job that wrote the dataset used the other options.
_READ_OPTIONS = Keys({}, {"label_offset": WHOLE}, allows_unknown_keys=True)
_MANIFEST = Keys(
    {
        "format_version": WHOLE,
        "created_by": TEXT,
        "layout": TEXT,
        "compression": Plain((str, NULL)),
        "splits": Entries(_SPLIT, quotes_keys=False),
        "features": Items(_FEATURE),
        "labels": _WHOLE_OR_NULL,
        "rejected": Entries(WHOLE),
        "options": Plain((dict,)),
        "source": _SOURCE,
    },
    {
        "labels_crc32c": _CRC32C_OR_NULL,
        "converted": Entries(WHOLE),
        "counts": Entries(WHOLE),
        "warnings": Entries(TEXT),
        "maxima": Entries(WHOLE),
        "appends": _APPENDS,
        "rejects": Items(TEXT),
        "keys": FLAG,
        "dali_index": FLAG,
        "tfds": _NAME_AND_VERSION,
    },
    allows_unknown_keys=True,
)


def check_manifest_json(value: Any) -> None:
    """Check a parsed manifest.

    Args:
        value: the object that `parse_json` returned.

    Raises:
        ValueError: a key is missing, a key of a split, shard, feature or source is unknown, or a value is of the wrong type or
            out of range; the message names the field, such as `splits.train.shards[0].records`.
    """
    _MANIFEST.check("", value)
    # Options may hold whatever `Anything` allows; only the options that readers use have a fixed type.
    Anything().check("options", value["options"])
    _READ_OPTIONS.check("options", value["options"])
    # A dataset without ids has no tokenizer, or only the name of one.
    if isinstance(value["options"].get("tokenizer"), dict):
        _TOKENIZER.check("options.tokenizer", value["options"]["tokenizer"])

"""Check of a manifest's JSON for the keys and types that `tpudata.format.manifest.manifest` describes.

A manifest may have been edited; without this check, readers would fail later with a TypeError. Unknown keys of the outermost object
are allowed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

_NAMES = {
    str: "a string",
    int: "a whole number",
    bool: "true or false",
    dict: "an object",
    list: "a list",
    type(None): "null",
}
_NULL = type(None)
_INT64_MAX = 2**63 - 1
_CRC32C = re.compile(r"[0-9a-f]{8}")
_TFDS = re.compile(r"[a-zA-Z][a-zA-Z0-9_]*:[0-9]+\.[0-9]+\.[0-9]+")
_SHOWN_CHARACTERS = 60

_Keys = Mapping[str, tuple[type, ...]]
_NO_KEYS: _Keys = {}
_TOP: _Keys = {
    "format_version": (int,),
    "created_by": (str,),
    "layout": (str,),
    "compression": (str, _NULL),
    "splits": (dict,),
    "features": (list,),
    "labels": (int, _NULL),
    "rejected": (dict,),
    "options": (dict,),
    "source": (dict,),
}
_SPLIT: _Keys = {"shards": (list,), "decoded_bytes": (int,)}
_SHARD: _Keys = {"name": (str,), "records": (int,), "bytes": (int,), "crc32c": (str,)}
_SOURCE: _Keys = {"input": (str,), "files": (int,), "bytes": (int,), "fingerprint": (str,), "ignored_files": (int,)}
_FEATURE: _Keys = {"name": (str,), "kind": (str,), "dtype": (str,), "shape": (list,)}
# Keys that Feature.to_json omits at their default.
_FEATURE_DEFAULTS: _Keys = {"encoding": (str, _NULL), "num_classes": (int, _NULL), "label_offset": (int,)}


def check_manifest_json(value: Any) -> None:
    """Check a parsed manifest.

    Args:
        value: the object that `json.loads` returned.

    Raises:
        ValueError: a key is missing or unknown, or a value is of another type; names the field, such as
            `splits.train.shards[0].records`.
    """
    _check("the file", value, (dict,))
    _check_keys("", value, _TOP)
    for name, split in value["splits"].items():
        _check_object(f"splits.{name}", split, _SPLIT)
        for number, shard in enumerate(split["shards"]):
            where = f"splits.{name}.shards[{number}]"
            _check_object(where, shard, _SHARD)
            if not _CRC32C.fullmatch(shard["crc32c"]):
                raise ValueError(
                    f"{where}.crc32c is {_shown(shard['crc32c'])}, not eight lower-case hexadecimal digits"
                )
    for number, feature in enumerate(value["features"]):
        where = f"features[{number}]"
        _check_object(where, feature, _FEATURE, _FEATURE_DEFAULTS)
        for axis, size in enumerate(feature["shape"]):
            _check(f"{where}.shape[{axis}]", size, (int, _NULL))
    labels_crc32c = value.get("labels_crc32c")
    _check("labels_crc32c", labels_crc32c, (str, _NULL))
    if labels_crc32c is not None and not _CRC32C.fullmatch(labels_crc32c):
        raise ValueError(f"labels_crc32c is {_shown(labels_crc32c)}, not eight lower-case hexadecimal digits")
    _check("converted", value.get("converted", {}), (dict,))
    _check("counts", value.get("counts", {}), (dict,))
    for name in ("rejected", "converted", "counts"):
        for reason, count in value.get(name, {}).items():
            _check(f"{name}[{reason!r}]", count, (int,))
    warnings = value.get("warnings", {})
    _check("warnings", warnings, (dict,))
    for kind, line in warnings.items():
        _check(f"warnings[{kind!r}]", line, (str,))
    _check("appends", value.get("appends", 0), (int,))
    rejects = value.get("rejects", [])
    _check("rejects", rejects, (list,))
    for number, name in enumerate(rejects):
        _check(f"rejects[{number}]", name, (str,))
    _check("keys", value.get("keys", False), (bool,))
    _check("dali_index", value.get("dali_index", False), (bool,))
    tfds = value.get("tfds")
    _check("tfds", tfds, (str, _NULL))
    if tfds is not None and not _TFDS.fullmatch(tfds):
        raise ValueError(f"tfds is {_shown(tfds)}, not a name and version such as 'pets:1.0.0'")
    _check_object("source", value["source"], _SOURCE)


def _check_object(where: str, value: Any, keys: _Keys, defaults: _Keys = _NO_KEYS) -> None:
    """Return an object that has all of `keys`, any of `defaults`, and no other keys."""
    _check(where, value, (dict,))
    unknown = sorted(value.keys() - keys.keys() - defaults.keys())
    if unknown:
        raise ValueError(f"{where} has the unknown key {_shown(unknown[0])}")
    _check_keys(f"{where}.", value, {**keys, **{key: types for key, types in defaults.items() if key in value}})


def _check_keys(prefix: str, value: Mapping[str, Any], keys: _Keys) -> None:
    for key, types in keys.items():
        if key not in value:
            raise ValueError(f"{prefix}{key} is missing")
        _check(f"{prefix}{key}", value[key], types)


def _check(where: str, value: Any, types: tuple[type, ...]) -> None:
    # The exact type: JSON makes no others, and true is not a number.
    if type(value) not in types:
        raise ValueError(f"{where} is {_shown(value)}, not {' or '.join(_NAMES[kind] for kind in types)}")
    if isinstance(value, int) and not 0 <= value <= _INT64_MAX:
        raise ValueError(f"{where} is {_shown(value)}, not a number from 0 to 2**63 - 1")


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..."

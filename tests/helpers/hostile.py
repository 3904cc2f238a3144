"""Random changes of a dataset's own files, with their checksums made right."""

from __future__ import annotations

import contextlib
import hashlib
import json
import random
import re
import struct
from pathlib import Path
from typing import Any

import google_crc32c

from tpudata.storage.claims.claim import PROCESS, Claim

_CHECKSUM = re.compile(rb'(?<=\n "checksum": ")[0-9a-f]{8}(?=",\n)')
_HEAD = struct.Struct("<8sQQIIII")
_KEYS_HEAD = struct.Struct("<8sQI")
_DEEP = "deep here"
# JSON texts: each value is made anew, as later changes may change it.
_VALUES = (
    *("null", "true", "false", "-1", "0", "1", "2", "7", "255", "0.5", "1e308", "Infinity", "NaN", f"1{'0' * 400}"),
    *(str(2**bits - less) for bits in (31, 32, 63, 64) for less in (0, 1)),
    *('""', '"x"', '"../x"', '"0"', '"00000000"', '"\\ud800"', '"\\u0000"', '"a\\nb"', '"int64"', '"raw"', '"gzip"'),
    *('"float32"', '"bytes"', '"train"', json.dumps(_DEEP), json.dumps("é" * 300), "1000000000000000"),
    *("[]", "{}", "[[]]", '{"": {}}', "[[[[[[[[[]]]]]]]]]", '[1, 2, "x"]', '[5, 1, "x"]'),
)


def _draw(random_: random.Random) -> Any:
    return json.loads(random_.choice(_VALUES))


def mutate(folder: Path, random_: random.Random) -> str:
    """Change one file of a dataset, in one to three places; returns what was changed, in words.

    Args:
        folder: a dataset that `tpudata convert` wrote; it has a quarantine and a claim afterwards if these are changed.
        random_: draws the change.
    """
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.suffix not in (".tfrecord", ".gz"))
    names = ["manifest.json"] * 6 + ["quarantine"] * 3 + ["claim"] + [str(path.relative_to(folder)) for path in files]
    name = random_.choice(names)
    changes = [_change(folder, name, random_)]
    # What a first change has broken may not allow another.
    with contextlib.suppress(struct.error, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        changes += [_change(folder, name, random_) for _ in range(random_.choice((0, 0, 0, 1, 2)))]
    return f"{name}: {'; '.join(changes)}"


def _change(folder: Path, name: str, random_: random.Random) -> str:
    if name == "manifest.json":
        return _change_manifest(folder, random_)
    if name == "quarantine":
        return _change_quarantine(folder, random_)
    if name == "claim":
        path = folder / ".tpudata-claim"
        value = json.loads(Claim.new(PROCESS).to_bytes())
        changed, words = _change_json(value, random_)
        path.write_bytes(_dump(changed))
        return words
    path = folder / name
    data = path.read_bytes()
    if name.endswith(".index"):
        data, words = _change_index(data, random_)
    elif name.endswith(".keys"):
        data, words = _change_keys(data, random_)
    elif name.endswith((".json", ".jsonl")):
        data, words = _change_lines(data, random_) if name.endswith("l") else _change_document(data, random_)
    else:
        data, words = _change_text(data, random_)
    path.write_bytes(data)
    _renew_checksums(folder, name, data, random_)
    return words


def write_json(path: Path, value: Any) -> None:
    """Write a JSON object whose checksum is made right if it has one."""
    data = _dump(value)
    match = _CHECKSUM.search(data)
    if match is not None:
        zeroed = data[: match.start()] + b"00000000" + data[match.end() :]
        data = data[: match.start()] + b"%08x" % google_crc32c.value(zeroed) + data[match.end() :]
    path.write_bytes(data)


def _dump(value: Any) -> bytes:
    text = json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False) + "\n"
    text = text.replace(json.dumps(_DEEP), "[" * 5000 + "]" * 5000)
    return text.encode(errors="backslashreplace")


def _change_manifest(folder: Path, random_: random.Random) -> str:
    path = folder / "manifest.json"
    try:
        value = json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        return "nothing more"
    changed, words = _change_json(value, random_)
    write_json(path, changed)
    return words


def _change_quarantine(folder: Path, random_: random.Random) -> str:
    path = folder / "index" / "quarantine.json"
    splits = json.loads((folder / "manifest.json").read_bytes())["splits"]
    shard = random_.choice([shard for split in splits.values() for shard in split["shards"]])
    count = shard["records"]
    bounds = sorted(random_.sample(range(count + 1), 4))
    ranges: list[Any] = [[bounds[0], bounds[1], "a"], [bounds[2], bounds[3], "b"]]
    entry = {"crc32c": shard["crc32c"], "bytes": shard["bytes"], "records": ranges}
    value: Any = {"version": 1, "checksum": "00000000", "shards": {shard["name"]: entry}}
    words = "valid"
    choice = random_.randrange(6)
    if choice == 0:
        entry["records"] = random_.choice(([[3, 3, ""]], [[4, 2, ""]], [[-2, 3, ""]], [[0, 5, ""], [3, 7, ""]]))
        words = f"ranges {entry['records']}"
    elif choice == 1:
        entry["records"] = [[0, count + random_.choice((1, 2**40, 2**63)), ""]]
        words = f"ranges {entry['records']}"
    elif choice == 2:
        entry["records"] = ranges[::-1]
        words = "ranges reversed"
    elif choice < 5:
        value, words = _change_json(value, random_)
    write_json(path, value)
    return words


def _change_json(value: Any, random_: random.Random) -> tuple[Any, str]:
    """Change one place of a JSON value."""
    place: Any = value
    where = ""
    while isinstance(place, dict | list) and place:
        key = random_.choice(list(place) if isinstance(place, dict) else range(len(place)))
        where += f".{key}"
        inner = place[key]
        # Most changes are at leaves.
        if isinstance(inner, dict | list) and inner and random_.random() < 0.85:
            place = inner
            continue
        return value, f"{where} {_change_place(place, key, value, random_)}"
    return _draw(random_), "all of it"


def _change_place(place: Any, key: Any, value: Any, random_: random.Random) -> str:
    inner, choice = place[key], random_.randrange(12)
    if choice == 0:
        del place[key]
        return "deleted"
    if choice == 1 and isinstance(place, dict):
        place["another"] = _draw(random_)
        return "has a neighbour"
    if choice == 2 and isinstance(place, list):
        place.append(inner)
        return "twice"
    if choice == 3 and isinstance(place, list):
        place.reverse()
        return "reversed"
    if choice in (4, 5, 6) and type(inner) is int:
        place[key] = random_.choice(
            (inner + 1, inner - 1, inner * 2, inner // 2, -inner, inner + 2**40, float(inner), str(inner))
        )
    elif choice in (4, 5) and isinstance(inner, str):
        place[key] = random_.choice((inner[1:], f"{inner}x", inner[::-1], inner.upper(), f"/{inner}"))
    elif choice == 7 and isinstance(place, dict):
        other = random_.choice(list(place))
        place[key], place[other] = place[other], inner
        return f"swapped with {other}"
    elif choice == 8:
        place[key] = json.loads(json.dumps(value))
        return "is the whole"
    else:
        place[key] = _draw(random_)
    return f"= {repr(place[key])[:40]}"


def _change_document(data: bytes, random_: random.Random) -> tuple[bytes, str]:
    try:
        value, words = _change_json(json.loads(data), random_)
    except (ValueError, RecursionError):
        return data, "nothing more"
    return _dump(value), words


def _change_lines(data: bytes, random_: random.Random) -> tuple[bytes, str]:
    lines = data.splitlines(keepends=True)
    number = random_.randrange(len(lines))
    document, words = _change_document(lines[number], random_)
    lines[number] = document.replace(b"\n", b"") + b"\n"
    return b"".join(lines), words


def _change_text(data: bytes, random_: random.Random) -> tuple[bytes, str]:
    lines = data.splitlines(keepends=True)
    number, choice = random_.randrange(len(lines)), random_.randrange(6)
    if choice == 0:
        del lines[number]
    elif choice == 1:
        lines.append(random_.choice(lines))
    elif choice == 2:
        lines.reverse()
    else:
        lines[number] = random_.choice(
            (b"\n", b"\xff\n", b"a\rb\n", b"\xe2\x80\xa8\n", b"a b c\n", b"\0\n", b"9" * 5000 + b"\n", b"x")
        )
    return b"".join(lines), f"line {number} by change {choice}"


def _change_index(data: bytes, random_: random.Random) -> tuple[bytes, str]:
    head = list(_HEAD.unpack_from(data))
    records, per_block, size, packed = head[1], head[4], head[5], head[6] == 2
    if len(data) < _HEAD.size + 8 * (records + 1) + size + 4 or not per_block:
        return data, "nothing more"
    summary = data[len(data) - 4 - size : -4]
    body = bytearray(data[_HEAD.size : len(data) - 4 - size])
    odd = (0, 1, 15, 16, 2**31, 2**62, 2**63 - 1, 2**63, 2**64 - 1)
    choice = random_.randrange(7)
    if choice == 0:
        field = random_.randrange(1, 7)
        wide = field < 3
        head[field] = random_.choice(
            [value for value in (*odd, head[field] + 1, max(0, head[field] - 1)) if value < 2 ** (64 if wide else 32)]
        )
        words = f"header field {field} = {head[field]}"
    elif choice == 1:
        summary, words = _change_document(summary, random_)
        head[5] = len(summary)
        words = f"summary {words}"
    elif choice == 2:
        cut = random_.randrange(len(body))
        del body[cut : cut + random_.choice((1, 4, 8))]
        words = f"cut at {cut}"
    else:
        end = 8 * (records + 1)
        places = [8 * n for n in range(records + 1)]
        if packed:
            places += range(len(body) - 8 * (-(-records // per_block) + 1), len(body), 8)
        place = random_.choice(places)
        value = struct.unpack_from("<Q", body, place)[0]
        near = (value + 1, max(0, value - 1), value + 16, max(0, value - 16), random_.randrange(value + 1))
        struct.pack_into("<Q", body, place, random_.choice((*odd, *near)) % 2**64)
        words = f"offset {place // 8} of {end // 8}: {value} = {struct.unpack_from('<Q', body, place)[0]}"
    whole = _HEAD.pack(*head) + bytes(body) + summary
    return whole + struct.pack("<I", google_crc32c.value(whole)), words


def _change_keys(data: bytes, random_: random.Random) -> tuple[bytes, str]:
    magic, count, crc = _KEYS_HEAD.unpack_from(data)
    entries = [data[at : at + 16] for at in range(_KEYS_HEAD.size, len(data) - 19, 16)]
    number, choice = random_.randrange(len(entries)), random_.randrange(5)
    if choice == 0:
        count = random_.choice((0, count + 1, count - 1, 2**40, 2**64 - 1))
    elif choice == 1:
        entries[number] = entries[number][:15] + bytes([random_.choice((0, 1, 2, 255))])
    elif choice == 2:
        entries.reverse()
    elif choice == 3:
        del entries[number]
        count -= 1
    else:
        crc ^= 1
    whole = _KEYS_HEAD.pack(magic, count, crc) + b"".join(entries)
    return whole + struct.pack("<I", google_crc32c.value(whole)), f"entry {number} by change {choice}"


def _renew_checksums(folder: Path, name: str, data: bytes, random_: random.Random) -> None:
    """Make the manifest agree with changed class names or a changed tokenizer, most of the time."""
    path = folder / "manifest.json"
    if random_.random() < 0.2:
        return
    value = json.loads(path.read_bytes())
    tokenizer = value["options"].get("tokenizer")
    if name == "labels.txt":
        value["labels_crc32c"], value["labels"] = f"{google_crc32c.value(data):08x}", len(data.splitlines())
    elif isinstance(tokenizer, dict) and tokenizer.get("file") == name:
        tokenizer["sha256"] = hashlib.sha256(data).hexdigest()
    write_json(path, value)

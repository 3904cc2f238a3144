"""Rejected inputs: listed by name and reason, counted by kind.

`DIR/rejects/train-00000-of-00012.jsonl`, a file for each shard that has any, and `DIR/rejects/listing-*.jsonl` for the others:
they were rejected before they had a place in a shard, or their shard has no other inputs, and does not exist. A line is a JSON
object:

    {"source": path or key of the input, "offset": byte in that file or null, "reason": why it was rejected}

If an input was rejected before it had a place in a shard and its key is known, also "key", since the source may move (a row of a
list comes to another line); and in the lists of shards that do not exist, also "entry": what tpudata.format.shards.keys describes,
in hexadecimal digits.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator

import numpy as np

from tpudata.errors import BadRecordError
from tpudata.format.layout import REJECTS_FOLDER, is_listing_rejects, shard_stem
from tpudata.format.reject_lines import read_reject_lines
from tpudata.format.shards.keys import Entries
from tpudata.format.written_files import WrittenFile
from tpudata.storage import storage_for

# A reason is "KIND", "KIND: particulars", "KIND (particulars)" or "KIND; advice"; quoted names in KIND may hold any of these.
_KIND = re.compile(r"""(?:(?<!\w)'[^']*'|(?<!\w)"[^"]*"|(?!: | \(|; ).)*""", re.DOTALL)
# Kinds that one shard counts by name: a foreign message with particulars in its kind does not fill the manifest.
_MOST_KINDS, _OTHER_KINDS = 100, "other reasons"


class Rejects:
    """Rejected inputs of one shard, or of a part of the listing.

    Args:
        name: the shard's file name, or that of the part.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._lines: list[bytes] = []
        self._counts: Counter[str] = Counter()

    @property
    def total(self) -> int:
        """Number of them."""
        return len(self._lines)

    def add(self, error: BadRecordError) -> None:
        """List one rejected input."""
        self._lines.append(reject_line(error))
        kind = reason_kind(error.reason)
        has_room = kind in self._counts or len(self._counts) < _MOST_KINDS
        self._counts[kind if has_room else _OTHER_KINDS] += 1

    def counts(self) -> dict[str, int]:
        """Return the number of rejects of each kind: the reason without its particulars."""
        return dict(sorted(self._counts.items()))

    def write(self, output: str) -> tuple[WrittenFile, ...]:
        """Write the rejected inputs into the dataset's folder, and return the file; without any, remove a killed run's file."""
        if not self._lines:
            storage_for(output).delete(self._join_path(output))
            return ()
        data = b"".join(self._lines)
        with storage_for(output).create(self._join_path(output)) as file:
            file.write(data)
        return (WrittenFile.of(rejects_name(self.name), data),)

    def write_without_shard(self, output: str, entries: Entries) -> tuple[WrittenFile, ...]:
        """Write those of a shard without other inputs, whose keys are `entries`, into a separate list, and return its file."""
        rows = entries.view(np.uint8).reshape(len(self._lines), -1)
        lines = [
            f"{json.dumps({**json.loads(line), 'entry': entry.tobytes().hex()})}\n".encode()
            for line, entry in zip(self._lines, rows, strict=True)
        ]
        data = b"".join(lines)
        with storage_for(output).create(self._list_path(output)) as file:
            file.write(data)
        return (WrittenFile.of(self._list_name(), data),)

    def remove_without_shard(self, output: str) -> None:
        """Remove what `write_without_shard` wrote: another attempt at the shard, whose reading failed, may have."""
        storage_for(output).delete(self._list_path(output))

    def _join_path(self, output: str) -> str:
        return storage_for(output).join(output, rejects_name(self.name))

    def _list_name(self) -> str:
        digest = hashlib.blake2b(self.name.encode(), digest_size=16).hexdigest()
        return rejects_name(f"listing-{digest}")

    def _list_path(self, output: str) -> str:
        return storage_for(output).join(output, self._list_name())


def rejects_name(shard: str) -> str:
    """Return the path of a shard's rejects below the dataset's folder, such as `rejects/train-00000-of-00012.jsonl`."""
    return f"{REJECTS_FOLDER}/{shard_stem(shard)}.jsonl"


def reject_line(error: BadRecordError) -> bytes:
    """Return the line of one rejected input."""
    value = {"source": error.source, "offset": error.offset, "reason": error.reason}
    if error.key is not None:
        value["key"] = error.key
    return f"{json.dumps(value)}\n".encode()


def listing_rejects(output: str) -> tuple[str, ...]:
    """Return the sorted names of the files in rejects/ that list inputs of no shard."""
    storage = storage_for(output)
    folder = storage.join(output, REJECTS_FOLDER)
    if storage.stat(folder) is None:
        return ()
    return tuple(entry.name for entry in storage.list(folder) if is_listing_rejects(entry.name))


def read_rejections(output: str, names: Iterable[str]) -> Iterator[tuple[bytes, bytes | None]]:
    """Return the lines of files in rejects/, each with the entry that it has; CorruptionError if one is damaged."""
    storage = storage_for(output)
    for name in names:
        for line in read_reject_lines(storage.join(output, REJECTS_FOLDER, name)):
            assert line.value is not None
            entry = line.value.get("entry")
            yield line.data, None if entry is None else bytes.fromhex(entry)


def remove_listing_rejects(output: str, kept_names: Collection[str] = ()) -> None:
    """Remove the files that `listing_rejects` names, except `kept_names`; a new listing writes its own."""
    storage = storage_for(output)
    for name in listing_rejects(output):
        if name not in kept_names:
            storage.delete(storage.join(output, REJECTS_FOLDER, name))


def reason_kind(reason: str) -> str:
    """Return the kind of a reason, by which rejects are counted: the text before its particulars."""
    match = _KIND.match(reason)
    return match[0] if match else reason

"""Rejected inputs: listed by name and reason, counted by kind.

A shard with rejected inputs has a file `DIR/rejects/train-00000-of-00012.jsonl`. Files `DIR/rejects/listing-*.jsonl` list the other
inputs: those rejected before they were assigned to a shard, and those of a shard that does not exist, since all its inputs were
rejected. A line is a JSON object:

    {"source": path or key of the input, "offset": byte in that file or null, "reason": why it was rejected}

It also has "key" if the input was rejected before it was assigned to a shard and its key is known, since the source may change (a
row of a list moves to another line). In the files of shards that do not exist it also has "entry", in hexadecimal digits:
tpudata.format.shards.keys describes it.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence

import numpy as np

from tpudata.errors import BadRecordError
from tpudata.format.layout import REJECTS_FOLDER, is_listing_rejects, shard_stem
from tpudata.format.reject_lines import read_reject_lines
from tpudata.format.shards.keys import Entries
from tpudata.format.written_files import WrittenFile
from tpudata.storage import storage_for

# A reason is "KIND", "KIND: particulars", "KIND (particulars)" or "KIND; advice"; quoted names in KIND may hold any of these.
_KIND = re.compile(r"""(?:(?<!\w)'[^']*'|(?<!\w)"[^"]*"|(?!: | \(|; ).)*""", re.DOTALL)
# Kinds that one shard counts by name, so that a library's message with particulars in its kind cannot fill the manifest.
_MAX_KINDS, _OTHER_KINDS = 100, "other reasons"


class Rejects:
    """Rejected inputs of one shard, or of a part of the listing.

    Args:
        name: file name of the shard, or name of the part.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._lines: list[bytes] = []
        self._counts: Counter[str] = Counter()

    @property
    def total(self) -> int:
        """Number of rejected inputs."""
        return len(self._lines)

    def add(self, error: BadRecordError) -> None:
        """List one rejected input."""
        self._lines.append(format_reject_line(error))
        kind = find_reason_kind(error.reason)
        has_room = kind in self._counts or len(self._counts) < _MAX_KINDS
        self._counts[kind if has_room else _OTHER_KINDS] += 1

    def counts(self) -> dict[str, int]:
        """Return the number of rejects of each kind: the reason without its particulars."""
        return dict(sorted(self._counts.items()))

    def write(self, output: str) -> tuple[WrittenFile, ...]:
        """Write the rejected inputs into a file of the dataset, and return it; if there are none, remove a killed run's file."""
        if not self._lines:
            storage_for(output).delete(storage_for(output).join(output, rejects_name(self.name)))
            return ()
        return (_write_lines(output, rejects_name(self.name), self._lines),)

    def write_list_of_missing_shard(self, output: str, entries: Entries) -> tuple[WrittenFile, ...]:
        """Write the inputs of a shard that does not exist, since all were rejected, into a separate file, and return the file.

        Args:
            output: the dataset's folder.
            entries: entries of the inputs, in the order in which they were added.
        """
        rows = entries.view(np.uint8).reshape(len(self._lines), -1)
        lines = [
            f"{json.dumps({**json.loads(line), 'entry': entry.tobytes().hex()})}\n".encode()
            for line, entry in zip(self._lines, rows, strict=True)
        ]
        return (_write_lines(output, self._make_listing_name(), lines),)

    def remove_list_of_missing_shard(self, output: str) -> None:
        """Remove the file of `write_list_of_missing_shard`, which an earlier attempt without readable inputs may have written."""
        storage_for(output).delete(storage_for(output).join(output, self._make_listing_name()))

    def _make_listing_name(self) -> str:
        """Return the name of the file of inputs without a shard; a hash, since a part's name may hold any characters."""
        digest = hashlib.blake2b(self.name.encode(), digest_size=16).hexdigest()
        return rejects_name(f"listing-{digest}")


def _write_lines(output: str, name: str, lines: Sequence[bytes]) -> WrittenFile:
    """Write lines, which end with line feeds, into a file of the dataset, and return the file with its size and checksum."""
    data = b"".join(lines)
    with storage_for(output).create(storage_for(output).join(output, name)) as file:
        file.write(data)
    return WrittenFile.of(name, data)


def rejects_name(name: str) -> str:
    """Return the path below the dataset's folder for the rejects of a shard or a part of the listing, from its name.

    For the shard train-00000-of-00012.tfrecord, it is `rejects/train-00000-of-00012.jsonl`.
    """
    return f"{REJECTS_FOLDER}/{shard_stem(name)}.jsonl"


def format_reject_line(error: BadRecordError) -> bytes:
    """Return the line of one rejected input in rejects/, with its line feed."""
    value = {"source": error.source, "offset": error.offset, "reason": error.reason}
    if error.key is not None:
        value["key"] = error.key
    return f"{json.dumps(value)}\n".encode()


def list_listing_rejects(output: str) -> tuple[str, ...]:
    """Return the sorted names of the files in rejects/ that list inputs without a shard; empty if there is no such folder."""
    storage = storage_for(output)
    folder = storage.join(output, REJECTS_FOLDER)
    if storage.stat(folder) is None:
        return ()
    return tuple(entry.name for entry in storage.list(folder) if is_listing_rejects(entry.name))


def read_rejections(output: str, names: Iterable[str]) -> Iterator[tuple[bytes, bytes | None]]:
    """Yield (line, its entry or None if it has none) for each line of files in rejects/; CorruptionError if a line is damaged."""
    storage = storage_for(output)
    for name in names:
        for line in read_reject_lines(storage.join(output, REJECTS_FOLDER, name)):
            # Only `scan_reject_lines` yields damaged lines, which have no value; the assertion shows this to the type checker.
            assert line.value is not None
            entry = line.value.get("entry")
            yield line.data, None if entry is None else bytes.fromhex(entry)


def remove_listing_rejects(output: str, kept_names: Collection[str] = ()) -> None:
    """Remove the files that `list_listing_rejects` names, except `kept_names`: a new listing writes them again."""
    storage = storage_for(output)
    for name in list_listing_rejects(output):
        if name not in kept_names:
            storage.delete(storage.join(output, REJECTS_FOLDER, name))


def find_reason_kind(reason: str) -> str:
    """Return the kind of a reason, by which rejects are counted: the words before its particulars, or all if it has none."""
    match = _KIND.match(reason)
    return match[0] if match else reason

"""The lines of DIR/rejects/*.jsonl, each a JSON object about a rejected input; beam_jobs.output.rejects writes them.

source   path or key of the input
offset   byte in that file, or null
reason   why it was rejected
key      stable name of the input, if it was rejected before it was assigned to a shard and its key is known
entry    its entry of tpudata.format.shards.keys in hexadecimal digits, if it belongs to a shard that was not written
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from tpudata.checked_json import NULL, TEXT, Keys, Plain, parse_json
from tpudata.errors import CorruptionError
from tpudata.format.layout import REJECTS_FOLDER
from tpudata.format.shards.keys import ENTRY_BYTES
from tpudata.storage import storage_for

_SCHEMA = Keys(
    {"source": TEXT, "offset": Plain((int, NULL)), "reason": TEXT},
    {
        "key": TEXT,
        "entry": Plain(
            (str, NULL),
            pattern=re.compile(rf"[0-9a-f]{{{2 * ENTRY_BYTES}}}"),
            words=f"{2 * ENTRY_BYTES} hexadecimal digits",
        ),
    },
    allows_unknown_keys=True,
)


class RejectLine(NamedTuple):
    """A line about a rejected input.

    Attributes:
        data: its bytes.
        offset: byte offset in the file.
        value: the line's JSON object, which has the keys of the module's docstring; None if the line is damaged.
        problem: the damage, in words; empty if there is none.
    """

    data: bytes
    offset: int
    value: dict[str, Any] | None
    problem: str = ""


def list_reject_files(folder: str) -> list[str]:
    """Return the paths of the files in a dataset's rejects/ that are not hidden; empty if there is no rejects/.

    Args:
        folder: the dataset's folder.

    Raises:
        StorageError: the folder cannot be listed.
    """
    storage = storage_for(folder)
    path = storage.join(folder, REJECTS_FOLDER)
    if storage.stat(path) is None:
        return []
    return [entry.path for entry in storage.list(path) if not entry.is_folder and not entry.name.startswith(".")]


def scan_reject_lines(path: str) -> Iterator[RejectLine]:
    """Yield every line of a file of rejected inputs, including damaged ones.

    Raises:
        StorageError: the file cannot be read.
    """
    offset = 0
    with storage_for(path).open(path) as file:
        for data in file:
            try:
                yield RejectLine(data, offset, _parse_line(data))
            except ValueError as error:
                yield RejectLine(data, offset, value=None, problem=f"the line is damaged: {error}")
            offset += len(data)


def read_reject_lines(path: str) -> Iterator[RejectLine]:
    """Yield the lines of a file of rejected inputs up to the first damaged one.

    Raises:
        CorruptionError: a line is damaged.
        StorageError: the file cannot be read.
    """
    for line in scan_reject_lines(path):
        if line.value is None:
            raise CorruptionError(path, line.offset, f"{line.problem}. Restore the file, or convert the dataset again.")
        yield line


def _parse_line(data: bytes) -> dict[str, Any]:
    """Return the JSON object in a line, which includes its line break; ValueError if the line is damaged."""
    value: dict[str, Any] = parse_json(data)
    _SCHEMA.check("", value)
    if not data.endswith(b"\n"):
        raise ValueError("it does not end with a line break")
    return value

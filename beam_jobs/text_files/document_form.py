"""Kinds of the bytes of documents."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from beam_jobs.references.payload import Payload


@dataclasses.dataclass(frozen=True)
class RowForm(Payload):
    """Rules for reading a document's bytes.

    Attributes:
        kind: `"plain"` for unchanged text, `"file"` for a whole file, `"json"` for an object, `"csv"` and `"tsv"`
            for cells, `"raw"` for those of raw TSV.
        delimiter: delimiter of cells.
        columns: names of the cells.
    """

    kind: str
    delimiter: str = ""
    columns: tuple[str, ...] = ()

    def entry_texts(self, crc32: int | None, features: Mapping[str, Any]) -> tuple[str, str]:
        """Return the kind, or for cells a JSON list with the delimiter and the columns; documents have no features."""
        del crc32, features
        return self.kind if not self.columns else json.dumps([self.kind, self.delimiter, *self.columns]), ""


PLAIN, FILE, JSON_ROW, CSV_ROW, TSV_ROW, RAW_ROW = "plain", "file", "json", "csv", "tsv", "raw"
PLAIN_TEXT = RowForm(PLAIN)

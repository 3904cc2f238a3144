"""Forms of documents: rules for reading the bytes that references to documents point to."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from beam_jobs.references.feature_text import features_text
from beam_jobs.references.reference import Payload


@dataclasses.dataclass(frozen=True)
class DocumentForm(Payload):
    """Base class of the rules for reading a document's bytes. A subclass is a frozen dataclass, which is pickled to the workers.

    By default, the bytes are the text in UTF-8; a subclass for other documents overrides `read`.
    """

    def read(self, data: bytes) -> str | bytes | Mapping[str, Any]:
        """Return a document: its text, the bytes of its text in UTF-8, or a row of named fields with values as in JSON.

        By default, the bytes themselves.

        Args:
            data: bytes of the document.

        Raises:
            ValueError: the bytes are not a document of this form, which is then a bad record.
        """
        return data


@dataclasses.dataclass(frozen=True)
class RowForm(Payload):
    """Rules for reading the bytes of a document of a text file.

    Attributes:
        kind: `"plain"` for unchanged text, `"file"` for a whole file, `"json"` for an object, `"csv"` and `"tsv"`
            for cells, `"raw"` for cells of raw TSV, `"conll"` and `"conllu"` for sentences.
        delimiter: character between two cells; empty for other kinds.
        columns: names of the cells.
    """

    kind: str
    delimiter: str = ""
    columns: tuple[str, ...] = ()

    def entry_texts(self, crc32: int | None, features: Mapping[str, Any]) -> tuple[str, str]:
        """Return (kind, features), the strings that the payload adds to an input's hash, see `Payload.entry_texts`.

        The CRC-32 is not used. With columns, the kind is a JSON list of kind, delimiter and columns.
        """
        del crc32
        kind = self.kind if not self.columns else json.dumps([self.kind, self.delimiter, *self.columns])
        return kind, features_text(features, is_escaped=self.is_escaped)


PLAIN, FILE, JSON_ROW, CSV_ROW, TSV_ROW, RAW_ROW = "plain", "file", "json", "csv", "tsv", "raw"
CONLL_ROW, CONLLU_ROW = "conll", "conllu"
PLAIN_TEXT = RowForm(PLAIN)

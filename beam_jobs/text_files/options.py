"""Options of a conversion of text, checked once."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

from beam_jobs.references.reading import MOST_INPUT_BYTES
from beam_jobs.tokenizers import TokenizerSpec
from beam_jobs.values.column_kinds import FLOAT, FLOAT32, INT, STR, ColumnKind
from tpudata.console.nearest import suggestion
from tpudata.errors import UsageError

AUTO = "auto"
LINES, PARAGRAPHS, FILES = "lines", "paragraphs", "files"
JSONL, CSV, TSV, RAW_TSV, PARQUET = "jsonl", "csv", "tsv", "raw-tsv", "parquet"
FORMS = (AUTO, LINES, PARAGRAPHS, FILES, JSONL, CSV, TSV, RAW_TSV, PARQUET)
# A file of JSON that is one array: found by its content, and named by no flag.
JSON_ARRAY = "json array"
TEXT = "text"
_LABELS = ("label", "labels", "class", "classes", "target", "targets")
TEXT_KINDS = (TEXT, STR)
FIELD_KINDS = (*TEXT_KINDS, INT, FLOAT, FLOAT32)
_KIND = re.compile(rf"(.+):((?:{'|'.join(FIELD_KINDS)})(?:=.*)?)", re.DOTALL)
# Beyond, a row and the tables of packing would be as large as a shard.
MOST_SEQUENCE_TOKENS = 1 << 20
INPUT_IDS = "input_ids"
# Treatment of documents that are longer than a sequence.
SPLIT, CUT = "split", "cut"
# A worker holds a few documents of this size; the limit also rejects a file without line ends.
DEFAULT_DOCUMENT_BYTES = 1 << 26


@dataclasses.dataclass(frozen=True)
class TextField:
    """A field of the input that goes into the records.

    Attributes:
        name: name of the field, and of the feature.
        kind: `"text"` is tokenized if there is a tokenizer; `"str"`, `"int"`, `"float"` and `"float32"` (which rounds) are stored
            unchanged.
        missing: value that is stored for a missing one; None rejects its document.

    Raises:
        UsageError: the name is empty or not UTF-8, or there is no such kind.
    """

    name: str
    kind: str = TEXT
    missing: str | int | float | None = None

    def __post_init__(self) -> None:
        if not self.name:
            raise UsageError("--field has no name (expected NAME or NAME:KIND, such as label:int)")
        if self.name.encode(errors="ignore").decode() != self.name:
            raise UsageError(f"--field {self.name!r}: names of features must be UTF-8. Rename the field")
        if self.kind not in FIELD_KINDS:
            raise UsageError(
                f"--field {self.name}: unknown kind (got {self.kind!r}, expected {', '.join(FIELD_KINDS)})"
            )

    @classmethod
    def parse(cls, text: str) -> TextField:
        """Parse `NAME`, `NAME:KIND` or `NAME:KIND=VALUE`; a name may have colons in it if no kind follows the last."""
        found = _KIND.fullmatch(text)
        if not found:
            return cls(text)
        name, kind = found.groups()
        try:
            return cls(name, *ColumnKind.parse(kind))
        except ValueError as error:
            raise UsageError(f"--field {text}: {error}") from None


@dataclasses.dataclass(frozen=True)
class TextOptions:
    """Options for reading text and for its records.

    Attributes:
        form: unit of a document: `"lines"`, `"paragraphs"` (between blank lines), `"files"`, a row of `"jsonl"`, `"csv"`, `"tsv"`,
            `"raw-tsv"` (whose quotes are ordinary characters) or `"parquet"`; `"auto"` takes rows if the file's name or content
            shows them, else lines.
        fields: fields of the records. Documents without fields, such as lines, have one text field.
        replace_invalid: whether bytes that are not UTF-8 become U+FFFD; otherwise their document is rejected.
        document_bytes: size of the largest document in bytes; larger ones are rejected.
        tokenizer: None stores text.
        sequence_length: tokens of every record, 1 to 1,048,576; None makes a record of each document.
        pack: whether sequences are packed from whole documents; otherwise they are cut from the stream of documents.
        long_documents: `"split"` or `"cut"`, treatment by packing of documents longer than a sequence.
        end_documents: whether sequences have the tokenizer's end of document after each document.
        int64_lists: whether the ids of sequences are stored as lists of int64 instead of bytes of int32.
        dedup: whether one of several documents with equal text is kept.

    Raises:
        UsageError: a value is invalid, or two do not fit each other.
    """

    form: str = AUTO
    fields: tuple[TextField, ...] = (TextField("text"),)
    replace_invalid: bool = False
    document_bytes: int = DEFAULT_DOCUMENT_BYTES
    tokenizer: TokenizerSpec | None = None
    sequence_length: int | None = None
    pack: bool = False
    long_documents: str = SPLIT
    end_documents: bool = True
    int64_lists: bool = False
    dedup: bool = False

    def __post_init__(self) -> None:
        if self.form not in FORMS:
            raise UsageError(
                f"--form: unknown value (got {self.form!r}, expected {', '.join(FORMS)}){suggestion(self.form, FORMS)}"
            )
        names = [field.name for field in self.fields]
        if len(set(names)) < len(names):
            raise UsageError(f"--field: one of {', '.join(names)} appears twice. Remove one")
        if not self.text_fields:
            raise UsageError(f"--field: none of {', '.join(names)} is text. Pass one without a kind")
        if self.form in (LINES, PARAGRAPHS, FILES) and len(names) > 1:
            raise UsageError(
                f"--field {' --field '.join(names)}: documents of --form {self.form} have no fields. Omit --field"
            )
        if not 1 <= self.document_bytes <= MOST_INPUT_BYTES:
            raise UsageError(f"--document-bytes: out of range (got {self.document_bytes:,}, expected 1 to 1 GiB)")
        if self.long_documents not in (SPLIT, CUT):
            raise UsageError(
                f"--long-documents: unknown value (got {self.long_documents!r}, expected {SPLIT} or {CUT})"
            )
        self._check_ids()
        self._check_sequences(names)

    def _check_ids(self) -> None:
        """Check that no other field of the records has the name of a field's ids."""
        if self.tokenizer is None:
            return
        ids = {self.ids_name(name): name for name in self.text_fields}
        for field in self.fields:
            if field.kind != TEXT and field.name in ids:
                raise UsageError(
                    f"--field {field.name}:{field.kind}: {field.name} is the name of the ids of {ids[field.name]} in the records."
                    " Rename the field in the input, or omit it"
                )

    def _check_sequences(self, names: list[str]) -> None:
        if self.sequence_length is None:
            if self.pack:
                raise UsageError("--pack requires --sequence-length, the number of tokens of a sequence")
            if self.int64_lists:
                raise UsageError(
                    "--int64-lists requires --sequence-length: other ids are stored as lists of int64 anyway"
                )
            return
        if self.tokenizer is None:
            raise UsageError("--sequence-length counts tokens, so it requires --tokenizer, such as --tokenizer bytes")
        if not 1 <= self.sequence_length <= MOST_SEQUENCE_TOKENS:
            raise UsageError(
                f"--sequence-length: out of range (got {self.sequence_length:,}, expected 1 to"
                f" {MOST_SEQUENCE_TOKENS:,})"
            )
        if len(names) > 1:
            raise UsageError(
                f"--sequence-length: a sequence joins documents, so it needs exactly one text field (got"
                f" {', '.join(names)})"
            )

    @property
    def text_fields(self) -> tuple[str, ...]:
        """Names of the fields that are text."""
        return tuple(field.name for field in self.fields if field.kind == TEXT)

    @property
    def label_fields(self) -> tuple[TextField, ...]:
        """The fields of whole numbers that are labels by their names."""
        return tuple(field for field in self.fields if field.kind == INT and field.name.lower() in _LABELS)

    def ids_name(self, name: str) -> str:
        """Name of the feature with the ids of a text field."""
        return INPUT_IDS if len(self.text_fields) == 1 else f"{name}_ids"

    def deciding(self) -> dict[str, Any]:
        """Return the options that decide the content of the shards, for the manifest; of the tokenizer, only its kind."""
        values = dataclasses.asdict(self)
        values["fields"] = {field.name: str(ColumnKind(field.kind, field.missing)) for field in self.fields}
        values["tokenizer"] = None if self.tokenizer is None else self.tokenizer.kind
        values["eos"] = None if self.tokenizer is None else self.tokenizer.eos
        values["replace_unknown"] = self.tokenizer is not None and self.tokenizer.replace_unknown
        return values

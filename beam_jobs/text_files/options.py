"""Options of a conversion of text, checked once."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping
from typing import Any

from beam_jobs.options import parse_size
from beam_jobs.options.labels import LABEL, TextLabelOptions
from beam_jobs.options.option import Bounds, Group, Stored, Value, check_options, option, stored_options
from beam_jobs.references.reading import MOST_INPUT_BYTES
from beam_jobs.tokenizers import TokenizerSpec
from beam_jobs.tokenizers.options import TokenizerOptions
from beam_jobs.values.column_kinds import FLOAT, FLOAT32, INT, STR, ColumnKind
from tpudata.checked_json import FLAG, WHOLE, Entries, Plain
from tpudata.checked_json import TEXT as TEXT_SCHEMA
from tpudata.console.flags import positive_int
from tpudata.errors import UsageError

AUTO = "auto"
LINES, PARAGRAPHS, SEPARATED, FILES = "lines", "paragraphs", "separated", "files"
JSONL, CSV, TSV, RAW_TSV, PARQUET = "jsonl", "csv", "tsv", "raw-tsv", "parquet"
FORMS = (AUTO, LINES, PARAGRAPHS, SEPARATED, FILES, JSONL, CSV, TSV, RAW_TSV, PARQUET)
# Their documents have no fields.
_PLAIN_FORMS = (LINES, PARAGRAPHS, SEPARATED, FILES)
# A file of JSON that is one array: found by its content, and named by no flag.
JSON_ARRAY = "json array"
TEXT = "text"
_LABELS = ("label", "labels", "class", "classes", "target", "targets")
TEXT_KINDS = (TEXT, STR)
# Kinds of lists, and of their items.
LIST_KINDS = {"ints": INT, "floats": FLOAT, "strings": STR}
FIELD_KINDS = (*TEXT_KINDS, INT, FLOAT, FLOAT32, *LIST_KINDS)
_KIND = re.compile(rf"(.+):((?:{'|'.join(FIELD_KINDS)})(?:=.*)?)", re.DOTALL)
# Beyond, a row and the tables of packing would be as large as a shard.
MOST_SEQUENCE_TOKENS = 1 << 20
INPUT_IDS = "input_ids"
# The feature of a document's key.
KEY = "key"
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
            unchanged, as are lists: `"ints"`, `"floats"` and `"strings"`.
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
        if kind.partition("=")[0] in LIST_KINDS and "=" in kind:
            raise UsageError(f"--field {text}: a list has no value for missing ones. Omit ={kind.partition('=')[2]}")
        try:
            return cls(name, *ColumnKind.parse(kind))
        except ValueError as error:
            raise UsageError(f"--field {text}: {error}") from None


def _fields_to_json(fields: Iterable[TextField]) -> dict[str, str]:
    return {field.name: str(ColumnKind(field.kind, field.missing)) for field in fields}


def _fields_from_json(kinds: Mapping[str, str]) -> list[TextField]:
    return [TextField(name, *ColumnKind.parse(kind)) for name, kind in kinds.items()]


def _parse_separator(text: str) -> str:
    return text.replace(r"\n", "\n").replace(r"\t", "\t")


@dataclasses.dataclass(frozen=True)
class TextOptions:
    """Options for reading text and for its records; `tokenizer` is None to store text, `labels` says where classes are.

    Raises:
        UsageError: a value is invalid, or two do not fit each other.
    """

    form: str = option(
        AUTO,
        Group.TEXT,
        "unit of a document: a line, a paragraph (between blank lines), text between --separator, a file, or a row; quotes"
        " in rows of raw-tsv are ordinary characters (default auto: rows if a file's name or content shows them, else lines)",
        choices=FORMS,
        stored=Stored(TEXT_SCHEMA),
    )
    separator: str | None = option(
        None,
        Group.TEXT,
        r"with --form separated: text between documents, such as '<|endoftext|>'; \n is a line end, \t a tab",
        Value("TEXT", _parse_separator),
        stored=Stored(TEXT_SCHEMA, is_optional=True),
    )
    headerless: bool = option(
        False,
        Group.TEXT,
        "the first row of CSV and TSV is a document, and fields are numbers of columns, counted from 0",
        flag="--no-header",
        stored=Stored(FLAG, is_optional=True),
    )
    fields: tuple[TextField, ...] = option(
        (TextField("text"),),
        Group.TEXT,
        "field of rows that goes into the records, once for each: text (default kind), str, int, float or float32 to"
        " store it as it is, or ints, floats or strings for a list; VALUE is stored for missing values, such as id:int=0"
        " (default text)",
        Value("NAME[:KIND[=VALUE]]", TextField.parse),
        flag="--field",
        collect=tuple,
        separator=":",
        stored=Stored(Entries(TEXT_SCHEMA), _fields_to_json, _fields_from_json),
    )
    replace_invalid: bool = option(
        False,
        Group.TEXT,
        "bytes that are not UTF-8: reject the document, or store U+FFFD for them (default fail)",
        flag="--invalid-utf8",
        choices={"fail": False, "replace": True},
        stored=Stored(FLAG),
    )
    document_bytes: int = option(
        DEFAULT_DOCUMENT_BYTES,
        Group.TEXT,
        "reject longer documents (default 64MiB)",
        Value("SIZE", parse_size, Bounds(1, MOST_INPUT_BYTES, "1 to 1 GiB")),
        stored=Stored(Plain((int,), low=1)),
    )
    key_field: str | None = option(
        None,
        Group.TEXT,
        "field of rows that is the key of a document in place of its file and byte; unique, a text or a whole number",
        Value("NAME"),
        stored=Stored(TEXT_SCHEMA, is_optional=True),
    )
    keep_key: bool = option(
        False,
        Group.TEXT,
        "store the key of each document as key, so that predictions can be joined to their documents",
        stored=Stored(FLAG, is_optional=True),
    )
    dedup: bool = option(False, Group.TEXT, "keep one of several documents with equal text", stored=Stored())
    tokenizer: TokenizerSpec | None = None
    labels: TextLabelOptions = dataclasses.field(default_factory=TextLabelOptions)
    sequence_length: int | None = option(
        None,
        Group.TOKENS,
        "records of N tokens, cut from the documents in order (default: a record of each document)",
        Value("N", positive_int, Bounds(1, MOST_SEQUENCE_TOKENS)),
        stored=Stored(WHOLE),
    )
    pack: bool = option(
        False, Group.TOKENS, "pack whole documents into sequences, with segment_ids and positions", stored=Stored(FLAG)
    )
    long_documents: str = option(
        SPLIT,
        Group.TOKENS,
        "with --pack: split documents longer than a sequence, or cut them off (default split)",
        choices=(SPLIT, CUT),
        stored=Stored(TEXT_SCHEMA),
    )
    end_documents: bool = option(
        True,
        Group.TOKENS,
        "put no end token after the documents in a sequence",
        flag="--no-eos",
        inverts=True,
        stored=Stored(FLAG),
    )
    int64_lists: bool = option(
        False,
        Group.TOKENS,
        "store sequences as lists of int64, for readers that take no other form",
        stored=Stored(FLAG),
    )

    def __post_init__(self) -> None:
        check_options(self)
        names = [field.name for field in self.fields]
        if len(set(names)) < len(names):
            raise UsageError(f"--field: one of {', '.join(names)} appears twice. Remove one")
        needs_text = self.tokenizer is not None or self.dedup or self.form in _PLAIN_FORMS
        if not self.text_fields and (needs_text or not any(field.kind in LIST_KINDS for field in self.fields)):
            raise UsageError(f"--field: none of {', '.join(names)} is text. Pass one without a kind")
        if self.form in _PLAIN_FORMS and len(names) > 1:
            raise UsageError(
                f"--field {' --field '.join(names)}: documents of --form {self.form} have no fields. Omit --field"
            )
        if self.tokenizer is not None and self.tokenizer.eos is not None and not self.end_documents:
            raise UsageError(f"--no-eos and --eos {self.tokenizer.eos} exclude each other. Omit one")
        self._check_form()
        self._check_ids()
        self._check_labels_and_keys(names)
        self._check_sequences(names)

    def _check_form(self) -> None:
        if self.form == SEPARATED and not self.separator:
            raise UsageError("--form separated requires --separator, the text between documents")
        if self.form != SEPARATED and self.separator is not None:
            raise UsageError(f"--separator requires --form separated (got --form {self.form})")
        if self.headerless and self.form not in (AUTO, CSV, TSV, RAW_TSV):
            raise UsageError(f"--no-header is for CSV and TSV (got --form {self.form}). Omit the flag")

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

    def _check_labels_and_keys(self, names: list[str]) -> None:
        if self.key_field == "":
            raise UsageError("--key-field is empty. Pass a field of the rows, or omit the flag")
        if self.labels.label_from is not None and self.form != FILES:
            raise UsageError(
                f"--label-from {self.labels.label_from} requires --form files: other documents share their file with others"
            )
        for flag, name in (("--label-field", self.labels.label_field), ("--key-field", self.key_field)):
            if name is not None and self.form in _PLAIN_FORMS:
                raise UsageError(f"{flag} {name}: documents of --form {self.form} have no fields. Omit the flag")
        for added in (LABEL,) * self.labels.are_stored + (KEY,) * self.keep_key:
            if self.sequence_length is not None:
                raise UsageError(
                    f"--sequence-length: a sequence joins documents, so it has no {added} of one. Omit it, or the flags of"
                    f" the {added}"
                )
            if added in names:
                raise UsageError(
                    f"--field {added}: {added} is the name of the {'class' if added == LABEL else 'key'} in the records."
                    " Rename the field in the input, or omit it"
                )

    def _check_sequences(self, names: list[str]) -> None:
        if self.long_documents != SPLIT and not self.pack:
            raise UsageError(
                "--long-documents requires --pack: a stream of documents is cut at the end of each sequence"
            )
        if self.sequence_length is None:
            if not self.end_documents:
                raise UsageError("--no-eos requires --sequence-length. Pass it, or omit the flag")
            if self.pack:
                raise UsageError("--pack requires --sequence-length, the number of tokens of a sequence")
            if self.int64_lists:
                raise UsageError(
                    "--int64-lists requires --sequence-length: other ids are stored as lists of int64 anyway"
                )
            return
        if self.tokenizer is None:
            raise UsageError("--sequence-length counts tokens, so it requires --tokenizer, such as --tokenizer bytes")
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
    def columns(self) -> tuple[TextField, ...]:
        """The fields of rows that are read: those that go into the records, and those of classes and keys, as they are written."""
        names = {field.name for field in self.fields}
        others = dict.fromkeys(name for name in (self.labels.label_field, self.key_field) if name is not None)
        return (*self.fields, *(TextField(name, STR) for name in others if name not in names))

    @property
    def needs_rows(self) -> bool:
        """Whether documents must be rows of named fields."""
        return len(self.columns) > 1 or not self.text_fields

    @property
    def label_fields(self) -> tuple[TextField, ...]:
        """The fields of whole numbers that are labels by their names."""
        return tuple(field for field in self.fields if field.kind == INT and field.name.lower() in _LABELS)

    def ids_name(self, name: str) -> str:
        """Name of the feature with the ids of a text field."""
        return INPUT_IDS if len(self.text_fields) == 1 else f"{name}_ids"

    def deciding(self) -> dict[str, Any]:
        """Return the options that decide the content of the shards, for the manifest; of the tokenizer, only its kind."""
        tokenizer = TokenizerOptions.describe(self.tokenizer)
        return {**stored_options(self), **stored_options(self.labels), **stored_options(tokenizer)}

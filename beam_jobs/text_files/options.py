"""Options of a conversion of text, checked once."""

from __future__ import annotations

import dataclasses
from typing import Any

from beam_jobs.chats.template import ChatTemplate
from beam_jobs.options import parse_size
from beam_jobs.options.groups import FlagGroup
from beam_jobs.options.labels import LABEL, TextLabelOptions
from beam_jobs.options.tokenizers import TokenizerOptions
from beam_jobs.references.reading import MAX_INPUT_BYTES
from beam_jobs.text_files.fields import TEXT, TextField, fields_from_json, fields_to_json
from beam_jobs.values.column_kinds import INT, LIST_KINDS, STR
from tpudata.checked_json import FLAG, WHOLE, Entries, Plain
from tpudata.checked_json import TEXT as TEXT_SCHEMA
from tpudata.console.flags import positive_int
from tpudata.console.option import Bounds, Stored, Value, check_options, option, stored_options
from tpudata.errors import UsageError
from tpudata.tokenizers import TokenizerSpec

AUTO = "auto"
LINES, PARAGRAPHS, SEPARATED, FILES = "lines", "paragraphs", "separated", "files"
JSONL, CSV, TSV, RAW_TSV, PARQUET = "jsonl", "csv", "tsv", "raw-tsv", "parquet"
CONLL, CONLLU = "conll", "conllu"
FORMS = (AUTO, LINES, PARAGRAPHS, SEPARATED, FILES, JSONL, CSV, TSV, RAW_TSV, PARQUET, CONLL, CONLLU)
# Forms whose documents have no fields.
_PLAIN_FORMS = (LINES, PARAGRAPHS, SEPARATED, FILES)
# Two files of lines, if there is a --targets-file; no value of --form.
PARALLEL = "parallel lines"
# A file of JSON that is one array, detected by its content; no value of --form.
JSON_ARRAY = "json array"
# A file of JSON in the format of SQuAD, also detected by its content; no value of --form.
SQUAD = "squad"
# Names of fields that are labels, if they are integers.
_LABEL_NAMES = ("label", "labels", "class", "classes", "target", "targets")
# Without this limit, a row and the tables for packing it could be as large as a shard.
MAX_SEQUENCE_TOKENS = 1 << 20
INPUT_IDS = "input_ids"
# The feature of a chat that is stored as text.
MESSAGES = "messages"
# The features of the two sides of a pair, as SeqIO names them.
INPUTS, TARGETS = "inputs", "targets"
# The feature of a document's key.
KEY = "key"
# Treatment of documents that are longer than a sequence.
SPLIT, CUT, REJECT = "split", "cut", "reject"
# A worker holds a few documents of this size; the limit also rejects a file without line ends.
DEFAULT_DOCUMENT_BYTES = 1 << 26


def _parse_names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(","))


def _parse_separator(text: str) -> str:
    return text.replace(r"\n", "\n").replace(r"\t", "\t")


@dataclasses.dataclass(frozen=True)
class TextOptions:
    """Options for reading text and for its records.

    `tokenizer` is None to store text; `template` renders the chats that are tokenized; `labels` determines the classes.

    Raises:
        UsageError: a value is invalid, or two do not fit each other.
    """

    form: str = option(
        AUTO,
        FlagGroup.TEXT,
        "unit of a document: a line, a paragraph (between blank lines), text between --separator, a file, or a row; quotes"
        " in rows of raw-tsv are ordinary characters; a sentence of conll has a word a line (default auto: rows if a file's"
        " name or content shows them, else lines)",
        choices=FORMS,
        stored=Stored(TEXT_SCHEMA),
    )
    separator: str | None = option(
        None,
        FlagGroup.TEXT,
        r"with --form separated: text between documents, such as '<|endoftext|>'; \n is a line end, \t a tab",
        Value("TEXT", _parse_separator),
        stored=Stored(TEXT_SCHEMA, is_optional=True),
    )
    headerless: bool = option(
        False,
        FlagGroup.TEXT,
        "the first row of CSV and TSV is a document, and fields are numbers of columns, counted from 0",
        flag="--no-header",
        stored=Stored(FLAG, is_optional=True),
    )
    fields: tuple[TextField, ...] = option(
        (TextField("text"),),
        FlagGroup.TEXT,
        "field of rows that goes into the records, once for each: text (default kind), str, int, float or float32 to"
        " store it as it is, or ints, floats or strings for a list; VALUE is stored for missing values, such as id:int=0"
        " (default text)",
        Value("NAME[:KIND[=VALUE]]", TextField.parse),
        flag="--field",
        collect=tuple,
        separator=":",
        stored=Stored(Entries(TEXT_SCHEMA), fields_to_json, fields_from_json),
    )
    inputs: str | None = option(
        None,
        FlagGroup.TEXT,
        "pairs: the field of rows with the text that a model is given, such as prompt, or several, which are joined by a"
        " blank line, such as instruction,input; requires --targets",
        Value("NAME[,NAME...]"),
        stored=Stored(TEXT_SCHEMA, is_optional=True),
    )
    targets: str | None = option(
        None,
        FlagGroup.TEXT,
        "pairs: the field of rows with the text that a model learns to give, such as completion",
        Value("NAME"),
        stored=Stored(TEXT_SCHEMA, is_optional=True),
    )
    targets_file: str | None = option(
        None,
        FlagGroup.TEXT,
        "pairs: a file of as many lines as the input, the targets; * in it is the name of each input file without its last"
        " ending",
        Value("FILE"),
        # The path is not stored, since it does not decide the content of records.
        stored=Stored(is_optional=True, write=lambda _: True),
    )
    chat: tuple[str, ...] = option(
        (),
        FlagGroup.TEXT,
        "chats: the field of rows with a list of messages (role and content, or from and value), or the fields of a question,"
        " the last of them the answer, such as instruction,input,output",
        Value("NAME[,NAME...]", _parse_names),
        stored=Stored(TEXT_SCHEMA, ",".join, _parse_names, is_optional=True),
    )
    replace_invalid: bool = option(
        False,
        FlagGroup.TEXT,
        "bytes that are not UTF-8: reject the document, or store U+FFFD for them (default fail)",
        flag="--invalid-utf8",
        choices={"fail": False, "replace": True},
        stored=Stored(FLAG),
    )
    document_bytes: int = option(
        DEFAULT_DOCUMENT_BYTES,
        FlagGroup.TEXT,
        "reject longer documents (default 64MiB)",
        Value("SIZE", parse_size, Bounds(1, MAX_INPUT_BYTES, "1 to 1 GiB")),
        stored=Stored(Plain((int,), low=1)),
    )
    key_field: str | None = option(
        None,
        FlagGroup.TEXT,
        "field of rows that is the key of a document in place of its file and byte; unique, a text or a whole number",
        Value("NAME"),
        stored=Stored(TEXT_SCHEMA, is_optional=True),
    )
    keep_key: bool = option(
        False,
        FlagGroup.TEXT,
        "store the key of each document as key, so that predictions can be joined to their documents",
        stored=Stored(FLAG, is_optional=True),
    )
    dedup: bool = option(False, FlagGroup.TEXT, "keep one of several documents with equal text", stored=Stored())
    tokenizer: TokenizerSpec | None = None
    template: ChatTemplate | None = None
    labels: TextLabelOptions = dataclasses.field(default_factory=TextLabelOptions)
    sequence_length: int | None = option(
        None,
        FlagGroup.TOKENS,
        "records of N tokens, cut from the documents in order (default: a record of each document)",
        Value("N", positive_int, Bounds(1, MAX_SEQUENCE_TOKENS)),
        stored=Stored(WHOLE),
    )
    inputs_length: int | None = option(
        None,
        FlagGroup.TOKENS,
        "with --pack, pairs for models with an encoder and a decoder: rows of N tokens of inputs, and --targets-length of"
        " targets",
        Value("N", positive_int, Bounds(1, MAX_SEQUENCE_TOKENS)),
        stored=Stored(WHOLE, is_optional=True),
    )
    targets_length: int | None = option(
        None,
        FlagGroup.TOKENS,
        "tokens of the targets in a row, see --inputs-length",
        Value("N", positive_int, Bounds(1, MAX_SEQUENCE_TOKENS)),
        stored=Stored(WHOLE, is_optional=True),
    )
    pack: bool = option(
        False,
        FlagGroup.TOKENS,
        "pack whole documents into sequences, with segment_ids and positions",
        stored=Stored(FLAG),
    )
    long_documents: str = option(
        SPLIT,
        FlagGroup.TOKENS,
        "with --pack: split documents longer than a sequence, cut them off, or reject them (default split)",
        choices=(SPLIT, CUT, REJECT),
        stored=Stored(TEXT_SCHEMA),
    )
    train_on_inputs: bool = option(
        False,
        FlagGroup.TOKENS,
        "loss weight 1 for all tokens of pairs in sequences and of chats, not only for targets and answers",
        stored=Stored(FLAG, is_optional=True),
    )
    end_documents: bool = option(
        True,
        FlagGroup.TOKENS,
        "put no end token after the documents in a sequence",
        flag="--no-eos",
        inverts=True,
        stored=Stored(FLAG),
    )
    int64_lists: bool = option(
        False,
        FlagGroup.TOKENS,
        "store sequences as lists of int64, for readers that take no other form",
        stored=Stored(FLAG),
    )

    def __post_init__(self) -> None:
        check_options(self)
        # The sides are named first, since the checks read their names.
        if self.targets_file is not None:
            self._name_sides()
        self._check_sides()
        if self.has_pairs or self.chat:
            object.__setattr__(self, "fields", self._join_fields())
        self._check_fields()
        if self.tokenizer is not None and self.tokenizer.eos is not None and not self.end_documents:
            raise UsageError(f"--no-eos and --eos {self.tokenizer.eos} exclude each other. Omit one")
        self._check_form()
        self._check_ids()
        self._check_labels_and_keys()
        self._check_sequences()

    def _check_fields(self) -> None:
        """Raise UsageError if a field is repeated, none is text where text is needed, or documents of the form have no fields."""
        names = [field.name for field in self.fields]
        if len(set(names)) < len(names):
            raise UsageError(f"--field: one of {', '.join(names)} appears twice. Remove one")
        # Lists, such as token ids, may take the place of text, unless something needs text.
        needs_text = self.tokenizer is not None or self.dedup or self.form in _PLAIN_FORMS
        if not self.text_fields and (needs_text or not any(field.kind in LIST_KINDS for field in self.fields)):
            raise UsageError(f"--field: none of {', '.join(names)} is text. Pass one without a kind")
        has_fields = len(names) > 1 or bool(self.chat)
        # With --targets-file, the two fields are lines of two files, not fields of rows.
        if self.form in _PLAIN_FORMS and has_fields and self.targets_file is None:
            flags = self.fields_flag if self.sides else f"--field {' --field '.join(names)}"
            raise UsageError(f"{flags}: documents of --form {self.form} have no fields. Omit {self.fields_flag}")

    def _name_sides(self) -> None:
        """Set the names of both sides of parallel files; UsageError if other options name them, or do not fit."""
        if self.form not in (AUTO, LINES):
            raise UsageError(f"--targets-file is for lines, and --form is {self.form}. Omit one")
        if self.chat:
            raise UsageError("--targets-file and --chat exclude each other: lines have no fields. Omit one")
        for side, name in (("inputs", INPUTS), ("targets", TARGETS)):
            if getattr(self, side) not in (None, name):
                raise UsageError(f"--targets-file and --{side} exclude each other: lines have no fields. Omit one")
            object.__setattr__(self, side, name)

    def _check_sides(self) -> None:
        """Raise UsageError if the options of pairs and chats do not fit each other."""
        if (self.inputs is None) != (self.targets is None):
            present, missing = ("--inputs", "--targets") if self.targets is None else ("--targets", "--inputs")
            raise UsageError(f"{present} requires {missing}: a pair has two sides. Pass both")
        if self.has_pairs and self.chat:
            raise UsageError("--inputs and --chat exclude each other: a document is a pair or a chat. Omit one")
        if len(set(self.sides)) < len(self.sides) or not all(self.sides):
            raise UsageError(f"{self.fields_flag}: a field has no name, or appears twice (got {self.sides}). Fix it")
        if self.chat and self.tokenizer is not None and self.tokenizer.collects_characters:
            raise UsageError("--chat: --tokenizer chars has no vocabulary yet. Pass chars:FILE, or another tokenizer")

    def _join_fields(self) -> tuple[TextField, ...]:
        """Return the fields of a pair or a chat, then the other fields.

        Raises:
            UsageError: one of the other fields is text, or has a name that the pair or chat uses.
        """
        # If there are several inputs, only the first must be present.
        optional_names = self.sides[1:-1] if self.has_pairs else ()
        sides = tuple(TextField(name, missing="" if name in optional_names else None) for name in self.sides)
        # A field `text` is the default of --field, which a pair or a chat replaces.
        other_fields = tuple(field for field in self.fields if field not in (*sides, TextField("text")))
        for field in other_fields:
            if field.kind == TEXT or field.name in (*self.sides, INPUTS, TARGETS, MESSAGES):
                raise UsageError(
                    f"--field {field.name}: the text of {self.fields_flag} is {', '.join(self.sides)}; other fields must not be"
                    " text, and need different names. Omit it, or rename it in the input"
                )
        return (*sides, *other_fields)

    def _check_form(self) -> None:
        """Raise UsageError if options of a form do not fit it."""
        if self.form == SEPARATED and not self.separator:
            raise UsageError("--form separated requires --separator, the text between documents")
        if self.form != SEPARATED and self.separator is not None:
            raise UsageError(f"--separator requires --form separated (got --form {self.form})")
        if self.headerless and self.form not in (AUTO, CSV, TSV, RAW_TSV):
            raise UsageError(f"--no-header is for CSV and TSV (got --form {self.form}). Omit the flag")

    def _check_ids(self) -> None:
        """Raise UsageError if a field has the name of the feature with the ids of another field."""
        if self.tokenizer is None:
            return
        # The name of each text field, by the name of the feature with its ids.
        names_by_ids = {self.name_ids_feature(name): name for name in self.text_fields}
        for field in self.record_fields:
            if field.kind != TEXT and field.name in names_by_ids:
                raise UsageError(
                    f"--field {field.name}:{field.kind}: {field.name} is the name of the ids of {names_by_ids[field.name]} in the"
                    " records. Rename the field in the input, or omit it"
                )

    def _check_labels_and_keys(self) -> None:
        """Raise UsageError if options of labels and keys do not fit the form or the fields."""
        if self.key_field == "":
            raise UsageError("--key-field is empty. Pass a field of the rows, or omit the flag")
        if self.labels.label_from is not None and self.form != FILES:
            raise UsageError(
                f"--label-from {self.labels.label_from} requires --form files: with any other form, one file has several documents"
            )
        for flag, name in (("--label-field", self.labels.label_field), ("--key-field", self.key_field)):
            if name is not None and (self.form in _PLAIN_FORMS or self.targets_file is not None):
                form = f"--form {self.form}" if self.targets_file is None else "--targets-file"
                raise UsageError(f"{flag} {name}: documents of {form} have no fields. Omit the flag")
        # A source shows whether there are labels only once it is opened.
        has_labels = self.labels.has_classes and not self.labels.are_from_source
        for feature_name, meaning, is_stored in ((LABEL, "class", has_labels), (KEY, "key", self.keep_key)):
            if not is_stored:
                continue
            if self.row_lengths:
                flag = "--sequence-length" if self.inputs_length is None else "--inputs-length"
                raise UsageError(
                    f"{flag}: a sequence joins several documents, so it has no single {feature_name}. Omit {flag}, or the"
                    f" flags that store a {feature_name}"
                )
            if any(field.name == feature_name for field in self.record_fields):
                raise UsageError(
                    f"--field {feature_name}: {feature_name} is the name of the {meaning} in the records."
                    " Rename the field in the input, or omit it"
                )

    def _check_sequences(self) -> None:
        """Raise UsageError if options of sequences do not fit each other or the fields."""
        if self.long_documents != SPLIT and not self.pack:
            raise UsageError(
                "--long-documents requires --pack: a stream of documents is cut at the end of each sequence"
            )
        if self.train_on_inputs and not self.has_weights:
            raise UsageError(
                "--train-on-inputs requires chats, or pairs in sequences. Pass --chat, or --inputs, --targets and"
                " --sequence-length; or omit it"
            )
        if self.inputs_length is not None or self.targets_length is not None:
            self._check_two_lengths()
            return
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
        names = [field.name for field in self.fields]
        other_names = names[len(self.sides) :]
        if self.sides and other_names:
            raise UsageError(
                f"--sequence-length: a sequence of pairs or chats has no other fields (got {', '.join(other_names)}). Omit them"
            )
        if not self.sides and len(names) > 1:
            raise UsageError(
                f"--sequence-length: a sequence joins documents, so it needs exactly one text field (got"
                f" {', '.join(names)})"
            )

    def _check_two_lengths(self) -> None:
        """Raise UsageError if options of packed pairs do not fit each other."""
        if self.inputs_length is None or self.targets_length is None or not self.pack or not self.has_pairs:
            raise UsageError(
                "--inputs-length and --targets-length are for packed pairs. Pass both, with --inputs, --targets and --pack"
            )
        if self.sequence_length is not None:
            raise UsageError("--inputs-length and --sequence-length exclude each other. Omit one")
        if self.tokenizer is None:
            raise UsageError("--inputs-length counts tokens, so it requires --tokenizer, such as --tokenizer bytes")
        if self.long_documents == SPLIT:
            raise UsageError(
                "--inputs-length: a pair that is longer cannot be split. Pass --long-documents cut, or reject"
            )
        other_names = [field.name for field in self.fields[len(self.sides) :]]
        if other_names:
            raise UsageError(
                f"--inputs-length: a row of pairs has no other fields (got {', '.join(other_names)}). Omit them"
            )

    @property
    def row_lengths(self) -> tuple[int, ...]:
        """Tokens of a row: (inputs, targets) of packed pairs, or (all,) of other sequences; empty if a record is a document."""
        if self.inputs_length and self.targets_length:
            return (self.inputs_length, self.targets_length)
        return () if self.sequence_length is None else (self.sequence_length,)

    @property
    def has_pairs(self) -> bool:
        """Whether a document is a pair of texts, inputs and targets."""
        return self.inputs is not None

    @property
    def sides(self) -> tuple[str, ...]:
        """Names of the fields of a pair or a chat, which are the first of `fields`; empty for other documents."""
        return (*_parse_names(self.inputs), self.targets) if self.inputs and self.targets else self.chat

    @property
    def fields_flag(self) -> str:
        """The flag that names the text fields."""
        if self.has_pairs:
            return "--inputs"
        return "--chat" if self.chat else "--field"

    @property
    def has_weights(self) -> bool:
        """Whether the records have a loss weight for each token."""
        if self.chat:
            return self.tokenizer is not None
        return self.has_pairs and self.sequence_length is not None

    @property
    def record_fields(self) -> tuple[TextField, ...]:
        """The fields of the records: a pair or a chat under the names of its features, then the other fields."""
        names: tuple[str, ...] = (MESSAGES,) if self.chat else ()
        if self.has_pairs:
            names = (INPUTS, TARGETS)
        return (*map(TextField, names), *self.fields[len(self.sides) :])

    @property
    def text_fields(self) -> tuple[str, ...]:
        """Names of the fields of the records that are text."""
        return tuple(field.name for field in self.record_fields if field.kind == TEXT)

    @property
    def columns(self) -> tuple[TextField, ...]:
        """The fields of rows that are read: `fields`, and the fields of classes and keys, as text."""
        names = {field.name for field in self.fields}
        other_names = dict.fromkeys(name for name in (self.labels.label_field, self.key_field) if name is not None)
        return (*self.fields, *(TextField(name, STR) for name in other_names if name not in names))

    @property
    def needs_rows(self) -> bool:
        """Whether documents must be rows of named fields."""
        return len(self.columns) > 1 or bool(self.chat) or not self.text_fields

    @property
    def label_fields(self) -> tuple[TextField, ...]:
        """The fields of integers with a usual name of labels, such as `label`."""
        return tuple(field for field in self.fields if field.kind == INT and field.name.lower() in _LABEL_NAMES)

    def name_ids_feature(self, name: str) -> str:
        """Return the name of the feature with the ids of a text field: the name of the field, if records are pairs."""
        if self.has_pairs:
            return name
        return INPUT_IDS if len(self.text_fields) == 1 else f"{name}_ids"

    def deciding_options(self) -> dict[str, Any]:
        """Return the options that decide the content of the shards, for the manifest: a JSON object."""
        tokenizer = TokenizerOptions.from_spec(self.tokenizer)
        template = {} if self.template is None else {"chat_template": self.template.to_json()}
        return {**stored_options(self), **stored_options(self.labels), **template, **stored_options(tokenizer)}

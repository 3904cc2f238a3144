"""From documents to records, in one of four layouts.

    text        the fields under their own names: text and str as strings, int as int64, float as float32
    tokens      input_ids [tokens] of the text field, or NAME_ids of each where there are several; other fields as above
    sequences   input_ids [length], cut from the stream of documents; only the last record of a shard has padding
    packed      input_ids, segment_ids and positions [length], from whole documents

Ids of one length are stored as bytes of int32, which a reader takes as they are; as lists of int64, where the options say so, the
reader decodes a varint for each.

A shard's documents are taken in its order, in windows of some 16,000, so that memory is bounded and the same documents give the
same records.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from beam_jobs.references.reference import WHOLE_FILE, Reference
from beam_jobs.text_files.options import INPUT_IDS, TEXT, TextOptions
from beam_jobs.text_files.values import PLAIN, DocumentError, RowForm, Value, document_values
from beam_jobs.text_records.int_examples import IntLists, encode_int_examples, encode_row_examples
from beam_jobs.text_records.schema import POSITIONS, SEGMENT_IDS
from beam_jobs.text_records.sequences import Documents, Rows, packed_rows, stream_rows, windows
from beam_jobs.text_records.summary import TextSummary
from beam_jobs.tokenizers import Ids, Tokenizer, TokenizerIdentity, check_ids
from beam_jobs.values.column_kinds import INT
from tpudata.errors import BadRecordError, UsageError
from tpudata.format import encode_example

# Documents that are tokenized at once.
_BATCH_DOCUMENTS = 1 << 12
_BATCH_BYTES = 1 << 23

Item = tuple[Reference, bytes]
Refuse = Callable[[Reference, BadRecordError], None]


class _Batch(NamedTuple):
    """Some documents.

    Attributes:
        documents: how many.
        values: of each field, in the order of the options.
        tokens: of each text field.
    """

    documents: int
    values: list[list[Value]]
    tokens: list[Documents]


@dataclasses.dataclass(frozen=True)
class TextRecords:
    """Turns documents into records; its fields decide what it writes.

    Attributes:
        options: fields and layout.
        tokenizer: the identity of the tokenizer, or None for layout text.

    Raises:
        UsageError: the tokenizer is missing or one too many, or it has no end of document and one is due.
    """

    options: TextOptions
    tokenizer: TokenizerIdentity | None = None

    def __post_init__(self) -> None:
        if (self.tokenizer is None) != (self.options.tokenizer is None):
            raise UsageError("a tokenizer and its identity go together")
        if self._ends_documents and self.tokenizer is not None and self.tokenizer.eos_id is None:
            raise UsageError(
                f"the tokenizer {self.tokenizer.name} has no end of document, or several that may be."
                " Name one of its tokens with --eos, or say --no-eos."
            )

    @property
    def _ends_documents(self) -> bool:
        return self.options.sequence_length is not None and self.options.end_documents

    def records(
        self, items: Iterable[Item], tokenizer: Tokenizer | None, summary: TextSummary, refuse: Refuse
    ) -> Iterator[bytes]:
        """Yields the records of a shard.

        Args:
            items: references of the shard's documents, in order, and their bytes.
            tokenizer: of the identity that the converter has, or None for layout text.
            summary: counts documents and tokens.
            refuse: called with a document that cannot be read and its error. It may raise; where it returns, the document is
                left out.

        Raises:
            FeatureError: the tokenizer gives an id that its vocabulary does not have.
            UsageError: the tokenizer is another one.
        """
        if tokenizer is None or self.tokenizer is None:
            return self._text_records(items, summary, refuse)
        if tokenizer.identity != self.tokenizer:
            raise UsageError(f"the tokenizer is {tokenizer.identity}, and {self.tokenizer} is due")
        batches = self._tokenized(items, tokenizer, summary, refuse)
        length = self.options.sequence_length
        if length is None:
            return self._token_records(batches, summary)
        documents = self._counted(batches, summary)
        pad_id = self.tokenizer.pad_id
        if self.options.pack:
            rows = packed_rows(windows(documents), length, pad_id, self.options.long_documents)
        else:
            rows = stream_rows(windows(documents), length, pad_id)
        return self._row_records(rows, summary)

    def _read(self, items: Iterable[Item], refuse: Refuse) -> Iterator[tuple[Reference, list[Value]]]:
        for reference, data in items:
            try:
                yield reference, document_values(data, RowForm.parse(reference.form), self.options)
            except DocumentError as error:
                refuse(reference, _refusal(reference, str(error), error.at))

    def _read_batch(self, batch: Sequence[Item], refuse: Refuse) -> tuple[list[Reference], list[list[Value]]]:
        """The references of the documents that can be read, and of each field their values."""
        if all(reference.form == PLAIN for reference, _ in batch):
            # Most text, and nothing is to be done for each document but this.
            with contextlib.suppress(UnicodeDecodeError):
                return [reference for reference, _ in batch], [[data.decode() for _, data in batch]]
        read = list(self._read(batch, refuse))
        values = [values for _, values in read]
        return [reference for reference, _ in read], [list(column) for column in zip(*values, strict=True)]

    def _text_records(self, items: Iterable[Item], summary: TextSummary, refuse: Refuse) -> Iterator[bytes]:
        names = [field.name for field in self.options.fields]
        for _, values in self._read(items, refuse):
            # As bytes, a value takes the encoder's short way.
            stored = [value.encode() if isinstance(value, str) else value for value in values]
            record = encode_example(dict(zip(names, stored, strict=True)))
            summary.documents += 1
            summary.decoded_bytes += len(record)
            yield record

    def _tokenized(
        self, items: Iterable[Item], tokenizer: Tokenizer, summary: TextSummary, refuse: Refuse
    ) -> Iterator[_Batch]:
        """Yield some documents at a time, never none, and count unknown tokens."""
        fields = [number for number, field in enumerate(self.options.fields) if field.kind == TEXT]
        for batch in _batches(items):
            references, values = self._read_batch(batch, refuse)
            if not references:
                continue
            texts = [list(map(str, values[number])) for number in fields]
            try:
                columns = list(map(tokenizer.encode_batch, texts))
            except ValueError:
                # One of them cannot be encoded: one by one, it is found.
                rows, columns = _one_by_one(references, texts, tokenizer, refuse)
                if not rows:
                    continue
                values = [[column[row] for row in rows] for column in values]
            tokens = list(map(Documents.of, columns))
            for documents in tokens:
                check_ids(documents.tokens, tokenizer.identity)
                if tokenizer.unknown_id is not None:
                    summary.unknown += int(np.count_nonzero(documents.tokens == tokenizer.unknown_id))
            yield _Batch(len(values[0]), values, tokens)

    def _token_records(self, batches: Iterable[_Batch], summary: TextSummary) -> Iterator[bytes]:
        for count, values, tokens in batches:
            text = dict(zip(self.options.text_fields, tokens, strict=True))
            lists: dict[str, IntLists] = {}
            others: dict[str, list[Value]] = {}
            for field, column in zip(self.options.fields, values, strict=True):
                if field.kind == TEXT:
                    lists[self.options.ids_name(field.name)] = IntLists.of_sizes(*text[field.name])
                elif field.kind == INT:
                    lists[field.name] = IntLists(np.array(column, np.int64), range(count + 1))
                else:
                    others[field.name] = column
            total = sum(len(documents.tokens) for documents in tokens)
            summary.documents += count
            summary.tokens += total
            summary.decoded_bytes += 4 * (total + count * (len(values) - len(tokens)))
            if not others:
                yield from encode_int_examples(lists)
                continue
            for row in range(count):
                record = {name: value.values[value.ends[row] : value.ends[row + 1]] for name, value in lists.items()}
                yield encode_example({**record, **{name: column[row] for name, column in others.items()}})

    def _counted(self, batches: Iterable[_Batch], summary: TextSummary) -> Iterator[Documents]:
        """Yields the tokens of some documents, ended where that is asked for."""
        eos_id = self.tokenizer.eos_id if self._ends_documents and self.tokenizer is not None else None
        for count, _, (documents,) in batches:
            summary.documents += count
            yield documents if eos_id is None else documents.ended(eos_id)

    def _row_records(self, rows: Iterable[Rows], summary: TextSummary) -> Iterator[bytes]:
        for some in rows:
            features = {INPUT_IDS: some.input_ids}
            if some.segment_ids is not None and some.positions is not None:
                features |= {SEGMENT_IDS: some.segment_ids, POSITIONS: some.positions}
            summary.tokens += some.real
            summary.padding += some.input_ids.size - some.real
            summary.dropped += some.dropped
            summary.decoded_bytes += 4 * some.input_ids.size * len(features)
            if self.options.int64_lists:
                yield from encode_int_examples({name: IntLists.of_rows(ids) for name, ids in features.items()})
            else:
                yield from encode_row_examples(features)


def _batches(items: Iterable[Item]) -> Iterator[list[Item]]:
    held: list[Item] = []
    size = 0
    for item in items:
        held.append(item)
        size += len(item[1])
        if len(held) >= _BATCH_DOCUMENTS or size >= _BATCH_BYTES:
            yield held
            held, size = [], 0
    if held:
        yield held


def _one_by_one(
    references: Sequence[Reference], texts: Sequence[Sequence[str]], tokenizer: Tokenizer, refuse: Refuse
) -> tuple[list[int], list[list[Ids]]]:
    """The rows of the documents that can be encoded, and of each text field their ids."""
    rows: list[int] = []
    columns: list[list[Ids]] = [[] for _ in texts]
    for row, reference in enumerate(references):
        try:
            encoded = [tokenizer.encode_batch([column[row]])[0] for column in texts]
        except ValueError as error:
            refuse(reference, _refusal(reference, str(error)))
            continue
        rows.append(row)
        for column, ids in zip(columns, encoded, strict=True):
            column.append(ids)
    return rows, columns


def _refusal(reference: Reference, reason: str, at: int | None = None) -> BadRecordError:
    """The error of a document: with the byte of its file, where it was read from there."""
    if reference.spool:
        return BadRecordError(reference.origin, reason if at is None else f"{reason} (byte {at} of the document)")
    start = max(0, reference.offset) if reference.offset != WHOLE_FILE else 0
    return BadRecordError(reference.path, reason, start + (at or 0))

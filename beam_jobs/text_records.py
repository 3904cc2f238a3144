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

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np

from beam_jobs.reference import WHOLE_FILE, Reference
from beam_jobs.text_examples import IntLists, encode_int_examples, encode_row_examples
from beam_jobs.text_options import INT, TEXT, TextOptions
from beam_jobs.text_schema import INPUT_IDS, POSITIONS, SEGMENT_IDS, ids_name
from beam_jobs.text_sequences import Rows, ended, packed_rows, stream_rows, windows
from beam_jobs.text_summary import TextSummary
from beam_jobs.text_values import DocumentError, RowForm, Value, document_values
from beam_jobs.tokenizers import Ids, Tokenizer, TokenizerIdentity, check_ids
from tpudata.errors import BadRecordError, UsageError
from tpudata.format import encode_example

# Documents that are tokenized at once.
_BATCH_DOCUMENTS = 1 << 12
_BATCH_BYTES = 1 << 23

Item = tuple[Reference, bytes]
Refuse = Callable[[Reference, BadRecordError], None]


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
                f"the tokenizer {self.tokenizer.name} has no end of document. Name one of its tokens with --eos, or say --no-eos."
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
            return self._text_records(self._read(items, refuse), summary)
        if tokenizer.identity != self.tokenizer:
            raise UsageError(f"the tokenizer is {tokenizer.identity}, and {self.tokenizer} is due")
        batches = self._tokenized(self._read(items, refuse), tokenizer, refuse)
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

    def _text_records(self, read: Iterable[tuple[Reference, list[Value]]], summary: TextSummary) -> Iterator[bytes]:
        names = [field.name for field in self.options.fields]
        for _, values in read:
            # As bytes, a value takes the encoder's short way.
            stored = [value.encode() if isinstance(value, str) else value for value in values]
            record = encode_example(dict(zip(names, stored, strict=True)))
            summary.documents += 1
            summary.decoded_bytes += len(record)
            yield record

    def _tokenized(
        self, read: Iterable[tuple[Reference, list[Value]]], tokenizer: Tokenizer, refuse: Refuse
    ) -> Iterator[tuple[list[list[Value]], list[list[Ids]]]]:
        """Yields the values of some documents, and of each text field the ids of these documents."""
        fields = [number for number, field in enumerate(self.options.fields) if field.kind == TEXT]
        for batch in _batches(read):
            try:
                columns = [tokenizer.encode_batch([str(values[number]) for _, values in batch]) for number in fields]
            except ValueError:
                # One of them cannot be encoded: one by one, it is found.
                batch, columns = _one_by_one(batch, fields, tokenizer, refuse)
            for ids in columns:
                if ids:
                    check_ids(np.concatenate(ids), tokenizer.identity)
            yield [values for _, values in batch], columns

    def _token_records(
        self, batches: Iterable[tuple[list[list[Value]], list[list[Ids]]]], summary: TextSummary
    ) -> Iterator[bytes]:
        for documents, columns in batches:
            text = dict(zip(self.options.text_fields, columns, strict=True))
            lists: dict[str, IntLists] = {}
            others: dict[str, int] = {}
            for number, field in enumerate(self.options.fields):
                if field.kind == TEXT:
                    lists[ids_name(field.name, self.options)] = IntLists.of_lists(text[field.name])
                elif field.kind == INT:
                    lists[field.name] = IntLists(
                        np.array([values[number] for values in documents], np.int64), range(len(documents) + 1)
                    )
                else:
                    others[field.name] = number
            tokens = sum(len(ids) for column in columns for ids in column)
            summary.documents += len(documents)
            summary.tokens += tokens
            summary.decoded_bytes += 4 * (tokens + len(documents) * (len(self.options.fields) - len(columns)))
            if not others:
                yield from encode_int_examples(lists)
                continue
            for number, values in enumerate(documents):
                record = {
                    name: value.values[value.ends[number] : value.ends[number + 1]] for name, value in lists.items()
                }
                yield encode_example({**record, **{name: values[place] for name, place in others.items()}})

    def _counted(
        self, batches: Iterable[tuple[list[list[Value]], list[list[Ids]]]], summary: TextSummary
    ) -> Iterator[Ids]:
        """Yields the ids of each document, ended where that is asked for."""
        for documents, (ids,) in batches:
            summary.documents += len(documents)
            if self._ends_documents and self.tokenizer is not None and self.tokenizer.eos_id is not None:
                yield from ended(ids, self.tokenizer.eos_id)
            else:
                yield from ids

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


def _batches(read: Iterable[tuple[Reference, list[Value]]]) -> Iterator[list[tuple[Reference, list[Value]]]]:
    held: list[tuple[Reference, list[Value]]] = []
    size = 0
    for item in read:
        held.append(item)
        size += item[0].size
        if len(held) >= _BATCH_DOCUMENTS or size >= _BATCH_BYTES:
            yield held
            held, size = [], 0
    if held:
        yield held


def _one_by_one(
    batch: Sequence[tuple[Reference, list[Value]]], fields: Sequence[int], tokenizer: Tokenizer, refuse: Refuse
) -> tuple[list[tuple[Reference, list[Value]]], list[list[Ids]]]:
    """The documents of a batch that can be encoded, and their ids by field."""
    kept: list[tuple[Reference, list[Value]]] = []
    columns: list[list[Ids]] = [[] for _ in fields]
    for reference, values in batch:
        try:
            encoded = [tokenizer.encode_batch([str(values[number])])[0] for number in fields]
        except ValueError as error:
            refuse(reference, _refusal(reference, str(error)))
            continue
        kept.append((reference, values))
        for column, ids in zip(columns, encoded, strict=True):
            column.append(ids)
    return kept, columns


def _refusal(reference: Reference, reason: str, at: int | None = None) -> BadRecordError:
    """The error of a document: with the byte of its file, where it was read from there."""
    if reference.spool:
        return BadRecordError(reference.origin, reason if at is None else f"{reason} (byte {at} of the document)")
    start = max(0, reference.offset) if reference.offset != WHOLE_FILE else 0
    return BadRecordError(reference.path, reason, start + (at or 0))

"""Conversion of documents to records, in one of five layouts.

    text          the fields under their names: text and str as strings, int as int64, float as float32
    tokens        input_ids [tokens] of the text field, or NAME_ids of each if there are several; other fields as above
    sequences     input_ids [length], cut from the stream of documents; only the last record of a shard may have padding
    packed        input_ids, segment_ids and positions [length], from documents, whole unless they are longer
    packed_pairs  inputs and targets [their lengths], each with segment_ids and positions, from pairs, whole unless a side is longer

Ids of one length are stored as bytes of int32, which a reader uses directly; if the options ask for lists of int64, a reader
decodes a varint for each.

A shard's documents are processed in its order, in windows of some 16,000, so memory is bounded and the same documents give the same
records.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from beam_jobs.feature_values.values import make_empty_list
from beam_jobs.options.labels import LABEL
from beam_jobs.references.input_values import convert_value
from beam_jobs.references.labels import NO_LABELS, Labels
from beam_jobs.references.packs.columns import spread
from beam_jobs.references.packs.pack import Pack
from beam_jobs.references.reference import Reference, key_bytes
from beam_jobs.references.rejection import RejectInput
from beam_jobs.text_files.document_form import PLAIN_TEXT
from beam_jobs.text_files.fields import TEXT
from beam_jobs.text_files.options import INPUT_IDS, INPUTS, KEY, REJECT, TARGETS, TextOptions
from beam_jobs.text_files.values import DocumentError, Value, parse_document
from beam_jobs.text_records.chat_tokens import ChatEncoder
from beam_jobs.text_records.encode_each import encode_each
from beam_jobs.text_records.int_examples import IntLists, encode_int_examples, encode_row_examples
from beam_jobs.text_records.pair_packing import PairRows, pack_pairs
from beam_jobs.text_records.schema import LOSS_WEIGHTS, POSITIONS, SEGMENT_IDS, make_text_features, name_side_features
from beam_jobs.text_records.sequences import Documents, TokenRows, pack_rows, split_windows, stream_rows
from beam_jobs.text_records.summary import TextSummary
from beam_jobs.text_records.weights import join_sides, split_weights
from beam_jobs.values.column_kinds import INT, LIST_KINDS, get_item_kind
from tpudata.errors import BadRecordError, UsageError
from tpudata.format import Feature, encode_example
from tpudata.tokenizers import Ids, Tokenizer, TokenizerIdentity, Utf8Tokenizer, check_ids

# Documents that are neighbours in a shard, and their concatenated bytes.
Block: TypeAlias = tuple[Pack, bytes]


class _Batch(NamedTuple):
    """A batch of documents.

    Attributes:
        document_count: number of documents in the batch.
        columns: lists of a value for each document: a list for each of `options.record_fields`, then for each extra feature. If a
            block was encoded with one call, the list of its text is empty, since only its tokens are needed.
        tokens: tokens of each text field.
        labels_and_keys: labels and keys, which are not fields, by feature.
    """

    document_count: int
    columns: list[list[Value]]
    tokens: list[Documents]
    labels_and_keys: dict[str, list[Any]]

    def take(self, is_kept: npt.NDArray[np.bool_]) -> _Batch:
        """Return the documents that a mask selects, bool [documents]."""
        columns = [list(itertools.compress(column, is_kept)) for column in self.columns]
        labels_and_keys = {
            name: list(itertools.compress(column, is_kept)) for name, column in self.labels_and_keys.items()
        }
        tokens = [documents.take(is_kept) for documents in self.tokens]
        return _Batch(int(is_kept.sum()), columns, tokens, labels_and_keys)


@dataclasses.dataclass(frozen=True)
class TextRecords:
    """Conversion of documents to records.

    Attributes:
        options: fields and layout.
        tokenizer: identity of the tokenizer; None if the options have no tokenizer.
        labels: the classes, if documents have any.
        several_labels: whether a document may have several classes, or none.
        extra: schema of `Reference.features`.

    Raises:
        UsageError: the tokenizer is missing, is not needed, or has no end of document and needs one.
    """

    options: TextOptions
    tokenizer: TokenizerIdentity | None = None
    labels: Labels = NO_LABELS
    several_labels: bool = False
    extra: tuple[Feature, ...] = ()

    def __post_init__(self) -> None:
        if (self.tokenizer is None) != (self.options.tokenizer is None):
            raise UsageError("a tokenizer requires its identity, and an identity a tokenizer")
        if self._ends_documents and self.tokenizer is not None and self.tokenizer.eos_id is None:
            raise UsageError(
                f"the tokenizer {self.tokenizer.name} has no end of document, or several candidates. Pass one of its"
                " tokens with --eos, or --no-eos."
            )

    @property
    def _ends_documents(self) -> bool:
        """Whether an end token is added to each document."""
        # Templates of chats render the ends themselves.
        return bool(self.options.row_lengths) and self.options.end_documents and not self.options.chat

    def records(
        self, blocks: Iterable[Block], tokenizer: Tokenizer | None, summary: TextSummary, reject: RejectInput
    ) -> Iterator[bytes]:
        """Yield the records of a shard.

        Args:
            blocks: documents of the shard, in order.
            tokenizer: the tokenizer that `self.tokenizer` identifies; None if that is None.
            summary: summary to which the documents and tokens are added.
            reject: called with a document that cannot be read and its error. If it returns, the document is omitted.

        Raises:
            FeatureError: the tokenizer gives an id that is not in its vocabulary.
            UsageError: the tokenizer is a different one.
        """
        if tokenizer is None or self.tokenizer is None:
            return self._encode_texts(blocks, summary, reject)
        if tokenizer.identity != self.tokenizer:
            raise UsageError(f"wrong tokenizer (got {tokenizer.identity}, expected {self.tokenizer})")
        batches = self._tokenize(blocks, tokenizer, summary, reject)
        lengths = self.options.row_lengths
        if not lengths:
            return self._encode_tokens(batches, summary)
        documents = self._end_documents(batches, summary)
        # Padding has weight 0; a token of weight 0 is represented by the complement of its id, see `zero_loss_weights`.
        pad_id = ~self.tokenizer.pad_id if self.options.has_weights else self.tokenizer.pad_id
        if len(lengths) == 2:
            return self._encode_pairs(pack_pairs(split_windows(documents), *lengths, pad_id), summary)
        (length,) = lengths
        if self.options.pack:
            rows = pack_rows(split_windows(documents), length, pad_id, self.options.long_documents)
        else:
            rows = stream_rows(split_windows(documents), length, pad_id)
        return self._encode_token_rows(rows, summary)

    def _encode_texts(self, blocks: Iterable[Block], summary: TextSummary, reject: RejectInput) -> Iterator[bytes]:
        """Yield a record for each readable document, without a tokenizer."""
        field_names = [*(field.name for field in self.options.record_fields), *(feature.name for feature in self.extra)]
        for block in blocks:
            rows, columns = self._parse_documents(block, summary, reject)
            pack, _ = block
            labels_and_keys = self._list_labels_and_keys(pack, rows)
            names, columns = [*field_names, *labels_and_keys], [*columns, *labels_and_keys.values()]
            columns = list(map(self._fill_empty_lists, names, columns))
            for values in zip(*columns, strict=True):
                # Examples are encoded faster from bytes than from strings.
                encoded = [value.encode() if isinstance(value, str) else value for value in values]
                record = encode_example(dict(zip(names, encoded, strict=True)))
                summary.documents += 1
                summary.decoded_bytes += len(record)
                yield record

    def _fill_empty_lists(self, name: str, column: list[Any]) -> list[Any]:
        """Return a column with empty arrays of the feature's dtype in place of empty lists, which show no dtype."""
        empty = self._empty_lists.get(name)
        return column if empty is None else [value if len(value) else empty for value in column]

    @functools.cached_property
    def _empty_lists(self) -> dict[str, npt.NDArray[Any]]:
        """Empty arrays, each of the dtype of a feature of lists, by the feature's name."""
        features = make_text_features(self.options, several_labels=self.several_labels)
        return {feature.name: make_empty_list(feature) for feature in features if feature.is_list}

    def _parse_documents(
        self, block: Block, summary: TextSummary, reject: RejectInput
    ) -> tuple[list[int], list[list[Value]]]:
        """Return the rows of the readable documents in the block, and their columns; reject the others.

        The columns are lists of a value for each readable document: for each of `options.record_fields`, then for each extra
        feature. If no document is readable, there are no columns.

        Args:
            block: pack of documents, and their concatenated bytes.
            summary: counts the negative labels, and the entries of the longest lists.
            reject: called with a document that cannot be read and its error.
        """
        pack, _ = block
        documents = _split_block(block)
        if pack.payloads == [PLAIN_TEXT] and not self.extra:
            # Most text is plain UTF-8, which needs no other work.
            with contextlib.suppress(UnicodeDecodeError):
                return list(range(len(documents))), [[data.decode() for data in documents]]
        readable_rows, values = [], []
        for row, (form, data) in enumerate(zip(spread(pack.payloads, len(documents)), documents, strict=True)):
            try:
                values.append(parse_document(data, form, self.options))
                readable_rows.append(row)
            except DocumentError as error:
                reference = pack.reference(row)
                reject(reference, _make_rejection(reference, str(error), error.offset))
        if self.extra:
            readable_rows, values = self._add_extra_features(pack, readable_rows, values, reject)
        columns = [list(column) for column in zip(*values, strict=True)]
        self._summarize_columns(columns, summary)
        return readable_rows, columns

    def _summarize_columns(self, columns: Sequence[list[Value]], summary: TextSummary) -> None:
        """Add to a summary the number of negative labels, and the length of the longest list in each list field."""
        # Columns of extra features follow the columns of fields; without documents there are no columns.
        for field, column in zip(self.options.record_fields, columns, strict=False):
            if field in self.options.label_fields:
                summary.negative_labels += sum(isinstance(value, int) and value < 0 for value in column)
            if field.kind in LIST_KINDS and column:
                summary.add_list(field.name, max(len(value) for value in column if isinstance(value, Sequence)))

    def _add_extra_features(
        self, pack: Pack, rows: Sequence[int], values: Sequence[list[Value]], reject: RejectInput
    ) -> tuple[list[int], list[list[Any]]]:
        """Append the extra features to the values of documents; reject documents whose features do not fit their schema.

        Args:
            pack: references of the block.
            rows: rows of the documents in the pack.
            values: values of each document by field.
            reject: called with a rejected document.

        Returns:
            The rows of the other documents, and the values of each, by field and by extra feature.
        """
        kept_rows, extended_values = list[int](), list[list[Any]]()
        features_of_rows = list(pack.list_feature_rows(len(pack.keys)))
        for row, field_values in zip(rows, values, strict=True):
            try:
                extra_values = [
                    convert_value(feature, features_of_rows[row].get(feature.name)) for feature in self.extra
                ]
            except ValueError as error:
                reference = pack.reference(row)
                reject(reference, _make_rejection(reference, str(error)))
                continue
            kept_rows.append(row)
            extended_values.append([*field_values, *extra_values])
        return kept_rows, extended_values

    def _list_labels_and_keys(self, pack: Pack, rows: Sequence[int]) -> dict[str, list[Any]]:
        """Return the columns of the labels and of the keys of documents in `rows`, by feature, if the options store them."""
        values_by_name: dict[str, list[Any]] = {}
        if self.options.labels.has_classes:
            # A single value is shared by all documents of the pack.
            labels = list(spread([tuple(map(self.labels.find_label, names)) for names in pack.labels], len(pack.keys)))
            row_labels = [labels[row] for row in rows]
            values_by_name[LABEL] = row_labels if self.several_labels else [label for (label,) in row_labels]
        if self.options.keep_key:
            values_by_name[KEY] = [key_bytes(pack.keys[row]) for row in rows]
        return values_by_name

    def _tokenize(
        self, blocks: Iterable[Block], tokenizer: Tokenizer, summary: TextSummary, reject: RejectInput
    ) -> Iterator[_Batch]:
        """Yield a batch for each block that has readable documents, and count unknown tokens.

        Args:
            blocks: documents of the shard, in order.
            tokenizer: the tokenizer that `self.tokenizer` identifies.
            summary: summary to which the unknown tokens are added.
            reject: called with a document that cannot be read and its error. If it returns, the document is omitted.
        """
        for block in blocks:
            batch = self._encode_utf8_batch(block, tokenizer) or self._encode_batch(block, tokenizer, summary, reject)
            if batch is None:
                continue
            for documents in batch.tokens:
                # Tokens of chats hold their loss weights already.
                ids = split_weights(documents.tokens)[0] if self.options.chat else documents.tokens
                check_ids(ids, tokenizer.identity)
                if tokenizer.unknown_id is not None:
                    summary.unknown += int(np.count_nonzero(ids == tokenizer.unknown_id))
            yield batch

    def _encode_utf8_batch(self, block: Block, tokenizer: Tokenizer) -> _Batch | None:
        """Return a block whose documents are encoded with one call; None unless they are plain text and nothing else is needed."""
        pack, data = block
        options = self.options
        is_plain = pack.payloads == [PLAIN_TEXT] and [field.kind for field in options.fields] == [TEXT]
        needs_more = self.extra or options.keep_key or options.labels.has_classes or options.long_documents == REJECT
        if needs_more or not is_plain or not isinstance(tokenizer, Utf8Tokenizer) or not _are_utf8(data, pack.sizes):
            return None
        # The column of the text is empty, since only its tokens are needed.
        return _Batch(len(pack.keys), [[]], [Documents(tokenizer.encode_utf8(data), pack.sizes.astype(np.int64))], {})

    def _encode_batch(
        self, block: Block, tokenizer: Tokenizer, summary: TextSummary, reject: RejectInput
    ) -> _Batch | None:
        """Return a block's documents with their tokens, except for the rejected ones; None if no document remains.

        Args:
            block: pack of documents, and their concatenated bytes.
            tokenizer: the tokenizer that `self.tokenizer` identifies.
            summary: counts the negative labels, and the entries of the longest lists.
            reject: called with a document that cannot be read or encoded, or that is too long if the options reject these.
        """
        pack, _ = block
        rows, columns = self._parse_documents(block, summary, reject)
        if not rows:
            return None
        text_indices = [index for index, field in enumerate(self.options.record_fields) if field.kind == TEXT]
        texts_of_fields = [list(map(str, columns[index])) for index in text_indices]
        encoder = self._pick_encoder(tokenizer)
        try:
            ids_of_fields = [encode_each(encoder, texts) for texts in texts_of_fields]
        except ValueError:
            # At least one document cannot be encoded: encode one by one to find and reject it.
            references = list(map(pack.reference, rows))
            encoded_indices, ids_of_fields = _encode_one_by_one(references, texts_of_fields, encoder, reject)
            if not encoded_indices:
                return None
            rows = [rows[index] for index in encoded_indices]
            columns = [[column[index] for index in encoded_indices] for column in columns]
        tokens = list(map(Documents.of, ids_of_fields))
        batch = _Batch(len(rows), columns, tokens, self._list_labels_and_keys(pack, rows))
        if self.options.long_documents != REJECT:
            return batch
        return self._reject_long(batch, list(map(pack.reference, rows)), reject)

    def _pick_encoder(self, tokenizer: Tokenizer) -> Tokenizer | ChatEncoder:
        template = self.options.template
        return ChatEncoder(tokenizer, template, self.options.train_on_inputs) if template else tokenizer

    def _reject_long(self, batch: _Batch, references: Sequence[Reference], reject: RejectInput) -> _Batch | None:
        """Reject the documents that are longer than a sequence, and return the rest of the batch; None if nothing remains."""
        lengths = self.options.row_lengths
        field_sizes = [documents.sizes for documents in batch.tokens]
        flags = ("--inputs-length", "--targets-length") if len(lengths) == 2 else ("--sequence-length",)
        # Both sides of a pair share a sequence, unless each side has rows.
        sizes_without_ends = field_sizes if len(lengths) == 2 else [np.sum(field_sizes, axis=0)]
        is_kept = np.ones(batch.document_count, np.bool_)
        for flag, length, sizes in zip(flags, lengths, sizes_without_ends, strict=True):
            token_counts = sizes + 1 if self._ends_documents else sizes
            for index in np.flatnonzero(is_kept & (token_counts > length)).tolist():
                reason = f"longer than {flag} (got {token_counts[index]:,} tokens, expected at most {length:,})"
                reject(references[index], _make_rejection(references[index], reason))
            is_kept &= token_counts <= length
        return batch.take(is_kept) if is_kept.any() else None

    def _encode_tokens(self, batches: Iterable[_Batch], summary: TextSummary) -> Iterator[bytes]:
        """Yield a record for each document of layout tokens: ids as integer lists, other fields unchanged."""
        fields = self.options.record_fields
        for document_count, columns, tokens, labels_and_keys in batches:
            tokens_by_field = dict(zip(self.options.text_fields, tokens, strict=True))
            lists: dict[str, IntLists] = {}
            others: dict[str, list[Any]] = dict(labels_and_keys)
            # Integers of all documents are encoded in one call.
            if LABEL in others:
                lists[LABEL] = _make_int_lists(others.pop(LABEL))
            others |= {feature.name: column for feature, column in zip(self.extra, columns[len(fields) :], strict=True)}
            # The columns of extra features, which follow those of the fields, are in `others` already.
            for field, column in zip(fields, columns, strict=False):
                if field.kind == TEXT and self.options.has_weights:
                    documents = tokens_by_field[field.name]
                    ids, weights = split_weights(documents.tokens)
                    lists[INPUT_IDS] = IntLists.from_sizes(ids, documents.sizes)
                    lists[LOSS_WEIGHTS] = IntLists.from_sizes(weights, documents.sizes)
                elif field.kind == TEXT:
                    lists[self.options.name_ids_feature(field.name)] = IntLists.from_sizes(*tokens_by_field[field.name])
                elif get_item_kind(field.kind) == INT:
                    lists[field.name] = _make_int_lists(column)
                else:
                    others[field.name] = self._fill_empty_lists(field.name, column)
            token_count = sum(len(documents.tokens) for documents in tokens)
            summary.documents += document_count
            summary.tokens += token_count
            # 4 bytes for each token, and for the value of each other column.
            summary.decoded_bytes += 4 * (token_count + document_count * (len(columns) - len(tokens)))
            yield from encode_int_examples(lists, others)

    def _end_documents(self, batches: Iterable[_Batch], summary: TextSummary) -> Iterator[Documents]:
        """Yield the tokens of documents, each with its end token if requested, and count the documents; a pair is one document."""
        for batch in batches:
            summary.documents += batch.document_count
            if not self.options.has_pairs:
                (documents,) = batch.tokens
                yield self._add_ends(documents)
                continue
            inputs, targets = batch.tokens
            # Inputs get an end token only if each side has rows; otherwise their targets follow immediately.
            inputs = self._add_ends(inputs) if len(self.options.row_lengths) == 2 else inputs
            yield join_sides(inputs, self._add_ends(targets), train_on_inputs=self.options.train_on_inputs)

    def _add_ends(self, documents: Documents) -> Documents:
        """Return documents, each with its end token if requested."""
        eos_id = self.tokenizer.eos_id if self._ends_documents and self.tokenizer is not None else None
        return documents if eos_id is None else documents.add_ends(eos_id)

    def _encode_pairs(self, rows: Iterable[PairRows], summary: TextSummary) -> Iterator[bytes]:
        """Yield the records of rows of pairs."""
        for batch in rows:
            features: dict[str, Ids] = {}
            for side, part in ((INPUTS, batch.inputs), (TARGETS, batch.targets)):
                assert part.segment_ids is not None
                assert part.positions is not None
                columns = (part.input_ids, part.segment_ids, part.positions)
                features |= dict(zip(name_side_features(side), columns, strict=True))
            yield from self._encode_rows(features, (batch.inputs, batch.targets), summary)

    def _encode_token_rows(self, rows: Iterable[TokenRows], summary: TextSummary) -> Iterator[bytes]:
        """Yield the records of rows of tokens."""
        for batch in rows:
            features = {INPUT_IDS: batch.input_ids}
            if self.options.has_weights:
                # Until here, each token holds its id and its weight in one number.
                features[INPUT_IDS], features[LOSS_WEIGHTS] = split_weights(batch.input_ids)
            if batch.segment_ids is not None and batch.positions is not None:
                features |= {SEGMENT_IDS: batch.segment_ids, POSITIONS: batch.positions}
            yield from self._encode_rows(features, (batch,), summary)

    def _encode_rows(
        self, features: dict[str, Ids], parts: Sequence[TokenRows], summary: TextSummary
    ) -> Iterator[bytes]:
        """Yield the records of rows with features int32 [rows, length], and count the tokens of the rows' parts."""
        for part in parts:
            summary.tokens += part.real_count
            summary.padding += part.input_ids.size - part.real_count
            summary.dropped += part.dropped_count
        summary.decoded_bytes += 4 * sum(ids.size for ids in features.values())
        if self.options.int64_lists:
            yield from encode_int_examples({name: IntLists.from_rows(ids) for name, ids in features.items()})
        else:
            yield from encode_row_examples(features)


def _make_int_lists(column: list[Any]) -> IntLists:
    """Return the lists of a column of integers, or of lists of integers."""
    if not column or not isinstance(column[0], (list, tuple)):
        # Each list is one integer: list n ends after integer n.
        return IntLists(np.array(column, np.int64), range(len(column) + 1))
    flat = list(itertools.chain.from_iterable(column))
    return IntLists.from_sizes(np.array(flat, np.int64), np.fromiter(map(len, column), np.int64, len(column)))


def _split_block(block: Block) -> list[bytes]:
    """Return the bytes of each document of a block."""
    pack, data = block
    ends = itertools.accumulate(pack.sizes.tolist(), initial=0)
    return [data[start:end] for start, end in itertools.pairwise(ends)]


def _are_utf8(data: bytes, sizes: npt.NDArray[np.integer]) -> bool:
    """Return whether concatenated documents are UTF-8, each by itself: no document begins inside a character."""
    if data.isascii():
        return True
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    starts = np.cumsum(sizes, dtype=np.int64) - sizes
    first_bytes = np.frombuffer(data, np.uint8)[starts[sizes > 0]]
    # In UTF-8, only the later bytes of a character begin with the bits 10.
    return not ((first_bytes & 0xC0) == 0x80).any()


def _encode_one_by_one(
    references: Sequence[Reference],
    texts_of_fields: Sequence[Sequence[str]],
    encoder: Tokenizer | ChatEncoder,
    reject: RejectInput,
) -> tuple[list[int], list[list[Ids]]]:
    """Return the indices of the documents that can be encoded, and for each text field their ids; reject the others.

    Args:
        references: reference to each document.
        texts_of_fields: for each text field, the text of each document.
        encoder: encoder of one text at a time.
        reject: called with the reference of a document that cannot be encoded, and its error.
    """
    encoded_indices: list[int] = []
    ids_of_fields: list[list[Ids]] = [[] for _ in texts_of_fields]
    for index, reference in enumerate(references):
        try:
            document_ids = [encode_each(encoder, [texts[index]])[0] for texts in texts_of_fields]
        except ValueError as error:
            reject(reference, _make_rejection(reference, str(error)))
            continue
        encoded_indices.append(index)
        for column, ids in zip(ids_of_fields, document_ids, strict=True):
            column.append(ids)
    return encoded_indices, ids_of_fields


def _make_rejection(reference: Reference, reason: str, offset: int | None = None) -> BadRecordError:
    """Return the error of a document with its offset in the file, or with its origin if its bytes are not from the file.

    Args:
        reference: reference to the document.
        reason: reason of the rejection.
        offset: byte of the problem in the document; None if unknown.
    """
    if reference.spool or reference.payload.is_fetched:
        return BadRecordError(
            reference.origin, reason if offset is None else f"{reason} (byte {offset} of the document)"
        )
    # A whole file begins at 0; its offset, WHOLE_FILE, is negative.
    start = max(0, reference.offset)
    return BadRecordError(reference.path, reason, start + (offset or 0))

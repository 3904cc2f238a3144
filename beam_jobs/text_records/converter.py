"""The converter of text: opens the tokenizer on a worker, makes a shard's records, and describes them for the manifest."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from beam_jobs.converter import Converter, ShardContext, check_extra, estimate_overhead
from beam_jobs.options.labels import TextLabelOptions
from beam_jobs.references.labels import Labels
from beam_jobs.references.packs.pack import Pack
from beam_jobs.references.packs.pack_reading import read_blocks
from beam_jobs.references.reading import read_references
from beam_jobs.references.reference import Reference, key_bytes
from beam_jobs.references.rejection import RejectInput
from beam_jobs.text_files.options import SPLIT, TextOptions
from beam_jobs.text_files.values import read_texts
from beam_jobs.text_records.records import Block, TextRecords
from beam_jobs.text_records.schema import make_text_features
from beam_jobs.text_records.summary import TextSummary
from tpudata.console.option import drop_empty_options, stored_options
from tpudata.console.tables import count_text
from tpudata.errors import BadRecordError
from tpudata.format import Feature, encode_example
from tpudata.format.tfrecord.framing import FRAME_BYTES
from tpudata.format.tokenizer_file import CHAT_TEMPLATE
from tpudata.tokenizers import CharacterSet, Tokenizer, TokenizerIdentity, TokenizerSpec, open_tokenizer

# Approximate share of a row that packing fills with padding.
_PADDING_SHARE = 0.005
# Approximate bytes of a number in a list.
_NUMBER_BYTES = 4


@dataclasses.dataclass(frozen=True)
class TextConverter(Converter):
    """Converter of a shard's documents to its records.

    Attributes:
        options: fields and layout.
        tokenizer: identity of the tokenizer; None if there is none, or if its vocabulary is collected from the data.
        several_labels: whether a document may have several classes, or none.
        extra: schema of `Reference.features`.

    Raises:
        UsageError: the tokenizer lacks an end of document that is needed, or an extra feature is not one that records can have.
    """

    options: TextOptions
    tokenizer: TokenizerIdentity | None = None
    several_labels: bool = False
    extra: tuple[Feature, ...] = ()

    def __post_init__(self) -> None:
        if self.tokenizer is not None:
            # Raises if the tokenizer does not fit the options.
            TextRecords(self.options, self.tokenizer)
        check_extra(self.extra, {feature.name for feature in make_text_features(self.options)})

    def new_summary(self) -> TextSummary:
        """Return an empty summary."""
        return TextSummary()

    def summary_from_json(self, value: dict[str, Any]) -> TextSummary:
        """Return the summary that `TextSummary.to_json` wrote."""
        return TextSummary.from_json(value)

    def features(self, summary: TextSummary, labels: Labels) -> tuple[Feature, ...]:
        """Return the schema, which depends on the documents only through the number of classes."""
        del summary
        return make_text_features(self.options, len(labels.names), several_labels=self.several_labels, extra=self.extra)

    def read(self, packs: Sequence[Pack]) -> Iterator[tuple[Pack | Reference, bytes | BadRecordError]]:
        """Yield packs of documents that are neighbours in a file, with their bytes, and a Reference with its error for each
        document that cannot be read.
        """
        for pack, data in read_blocks(packs):
            # A pack with an error has one reference.
            yield (pack.reference(0) if isinstance(data, BadRecordError) else pack), data

    def records(
        self, inputs: Iterable[Block], context: ShardContext, summary: TextSummary, reject: RejectInput
    ) -> Iterator[bytes]:
        """Yield the records of a shard; `inputs` are packs of documents, each with their concatenated bytes."""
        tokenizer = self._open_tokenizer(context.characters)
        identity = None if tokenizer is None else tokenizer.identity
        text_records = TextRecords(self.options, identity, context.labels, self.several_labels, self.extra)
        return text_records.records(inputs, tokenizer, summary, reject)

    def manifest_options(self, context: ShardContext) -> dict[str, Any]:
        """Return the tokenizer's identity if its vocabulary was collected from the data; empty otherwise."""
        tokenizer = self._open_tokenizer(context.characters) if context.characters is not None else None
        return {} if tokenizer is None else {"tokenizer": tokenizer.identity.to_json()}

    def counts(self, summary: TextSummary) -> dict[str, int]:
        """Return the number of documents, and the counts of tokens, padding and unknown text that apply to the layout."""
        counts = {"documents": summary.documents}
        if self.options.tokenizer is not None:
            counts["tokens"] = summary.tokens
        if self.options.row_lengths:
            counts |= {"padding": summary.padding, "dropped": summary.dropped}
        if summary.unknown:
            counts["unknown"] = summary.unknown
        return counts

    def maxima(self, summary: TextSummary) -> dict[str, int]:
        """Return the maximum number of entries of a document's list, by name of a field of lists."""
        return summary.maxima

    def warnings(self, summary: TextSummary) -> dict[str, str]:
        """Return the warning about negative labels if there are any."""
        if not summary.negative_labels:
            return {}
        names = ", ".join(field.name for field in self.options.label_fields)
        return {
            "negative_labels": f"{count_text(summary.negative_labels, 'label')} below 0 in {names} (test sets often hide labels as"
            " -1); omit these files, or the --field"
        }

    def files(self, context: ShardContext) -> dict[str, bytes]:
        """Return the files of the tokenizer and the chat template, if there are any."""
        tokenizer = self._open_tokenizer(context.characters)
        template = self.options.template
        files = {} if template is None else {CHAT_TEMPLATE: template.file_bytes}
        if tokenizer is not None and tokenizer.identity.file:
            files[tokenizer.identity.file] = tokenizer.file_bytes
        return files

    def extra_bytes(self, pack: Pack) -> npt.NDArray[np.int64]:
        """Return the approximate bytes of the stored keys and the extra features of the documents in a pack, int64 [n]."""
        sizes = np.zeros(len(pack.keys), np.int64)
        for column in pack.features.values():
            sizes += np.array(list(map(_estimate_value_bytes, column)), np.int64)
        if self.options.keep_key:
            sizes += np.array([len(key_bytes(key)) for key in pack.keys], np.int64)
        return sizes

    def deciding_fields(self) -> dict[str, Any]:
        """Return the fields that determine the records, by name, without paths.

        Empty fields that earlier versions lacked are omitted, so that --resume keeps shards of these versions.
        """
        fields = super().deciding_fields()
        options = drop_empty_options(self.options, fields["options"])
        # Files decide by their content, not by their paths: the field `tokenizer`, an identity, has the hash of the tokenizer's
        # file, and the file of targets is one of the inputs.
        options.pop("targets_file", None)
        if self.options.tokenizer is not None:
            options["tokenizer"]["path"] = ""
        if self.options.template is None:
            del options["template"]
        if self.options.tokenizer is not None and self.options.tokenizer.special_tokens is None:
            del options["tokenizer"]["special_tokens"]
        options["labels"] = stored_options(self.options.labels)
        if not self.options.labels.has_classes:
            del options["labels"], fields["several_labels"]
        if not self.extra:
            del fields["extra"]
        return {**fields, "options": options}

    @property
    def record_overhead(self) -> int:
        """Approximate bytes of a document in a shard besides its text or tokens, and besides the frame that the plan adds."""
        if not self.options.row_lengths:
            return _measure_empty_record(self.options) + estimate_overhead(self.extra)
        # In sequences, a document adds only its end token, whose id is taken for one byte. The plan adds a frame to each
        # document, but only sequences have frames.
        return round(self._estimate_token_bytes(id_bytes=1.0) if self.options.end_documents else 0) - FRAME_BYTES

    def estimate_ratio(self, references: Iterable[Reference]) -> float:
        """Return the estimated ratio of shard bytes, besides `record_overhead`, to document bytes; 1.0 if no document can be read.

        Args:
            references: references to a random sample of all documents.
        """
        documents = [
            (reference, data) for reference, data in read_references(references) if not isinstance(data, BadRecordError)
        ]
        tokenizer = self._open_sample_tokenizer(documents)
        if tokenizer is None and self.options.tokenizer is not None:
            return 1.0
        # Convert each document to a record by itself, of text or of a list of ids.
        options = dataclasses.replace(
            self.options,
            sequence_length=None,
            inputs_length=None,
            targets_length=None,
            pack=False,
            long_documents=SPLIT,
            end_documents=True,
            train_on_inputs=False,
            int64_lists=False,
            labels=TextLabelOptions(),
            keep_key=False,
        )
        text_records = TextRecords(options, None if tokenizer is None else tokenizer.identity)
        summary = self.new_summary()
        skipped_keys: set[str] = set()
        # The size in a reference may be an estimate, for documents that a source fetches.
        measured_documents = [(reference._replace(size=len(data)), data) for reference, data in documents]
        blocks = [(Pack.of([reference], np.zeros(1, np.uint64)), data) for reference, data in measured_documents]
        sample_records = list(
            text_records.records(blocks, tokenizer, summary, lambda reference, _: skipped_keys.add(reference.key))
        )
        document_bytes = sum(reference.size for reference, _ in documents if reference.key not in skipped_keys)
        if not document_bytes:
            return 1.0
        # The bytes of texts, or of ids, nearly all of which are varints.
        content_bytes = sum(map(len, sample_records)) - len(sample_records) * _measure_empty_record(options)
        if not self.options.row_lengths:
            return content_bytes / document_bytes
        return summary.tokens * self._estimate_token_bytes(content_bytes / max(1, summary.tokens)) / document_bytes

    def _open_tokenizer(self, characters: str | None) -> Tokenizer | None:
        """Return the tokenizer; None if text is stored. `characters` is the vocabulary if it is collected from the data."""
        if self.options.tokenizer is None:
            return None
        return _open_once(self.options.tokenizer, characters or "", self.tokenizer.sha256 if self.tokenizer else "")

    def _open_sample_tokenizer(self, documents: Iterable[tuple[Reference, bytes]]) -> Tokenizer | None:
        """Return the tokenizer; if its vocabulary is still to be collected, a tokenizer over the characters of `documents`.

        None if there is no tokenizer, or no characters.
        """
        if self.options.tokenizer is None or not self.options.tokenizer.collects_characters:
            return self._open_tokenizer(characters=None)
        characters = CharacterSet()
        for texts in read_texts(documents, self.options):
            for text in texts or ():
                characters.add(text)
        return open_tokenizer(self.options.tokenizer, characters.characters) if characters.characters else None

    def _estimate_token_bytes(self, id_bytes: float) -> float:
        """Return the size in bytes of a token in a sequence, with its share of the record; its id takes `id_bytes` as a varint."""
        # Rows of pairs have two sides, with half of the features each.
        length = sum(self.options.row_lengths)
        side_count = len(self.options.row_lengths)
        features_per_side = len(make_text_features(self.options)) / side_count
        # As varints, a position below 128 takes one byte, others take about two; a segment and a weight take one.
        position_bytes = 1 + max(0, length - 128) / length
        segment_and_position_bytes = 1 + position_bytes if self.options.pack else 0.0
        weight_bytes = 1 if self.options.has_weights else 0
        varint_bytes = id_bytes + segment_and_position_bytes + weight_bytes
        # Without --int64-lists, each feature holds an int32 for the token.
        token_bytes = varint_bytes if self.options.int64_lists else 4 * features_per_side
        record_share = (_measure_empty_record(self.options) + FRAME_BYTES) / length
        return (record_share + token_bytes) * (1 + _PADDING_SHARE)


def _estimate_value_bytes(value: Any) -> int:
    """Return the approximate size in bytes of an extra feature's value: 0 for a single number, which is in the overhead."""
    if isinstance(value, (list, tuple)):
        # Numbers and empty strings, whose own estimate is 0, take bytes in a list: about 4, and 2.
        return sum(_estimate_value_bytes(element) or _NUMBER_BYTES for element in value)
    if isinstance(value, np.ndarray):
        return value.nbytes
    if isinstance(value, str):
        return len(value.encode(errors="replace"))
    return len(value) if isinstance(value, bytes) else 0


def _measure_empty_record(options: TextOptions) -> int:
    """Return the number of bytes of a record whose texts are empty and whose numbers are 0."""
    empty = {feature.name: b"" if feature.kind == "bytes" else 0 for feature in make_text_features(options)}
    return len(encode_example(empty))


@functools.lru_cache(maxsize=2)
def _open_once(spec: TokenizerSpec, characters: str, sha256: str) -> Tokenizer:
    """Return a tokenizer, which is opened once in a process."""
    return open_tokenizer(spec, characters, sha256)

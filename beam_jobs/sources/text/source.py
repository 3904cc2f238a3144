"""Files of text: a Source whose records are documents.

Small documents are read while they are listed, and are written aside (see beam_jobs.steps.listing.list_references) in the order
in which they will be needed: sorted by their place in the shuffled order, 16 MB at a time. A shard then finds its part of each
such run in one place; reading a million lines from the input would be a million reads. Large documents, and all documents if the
order is that of the input, are read from the input.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np

from beam_jobs.options import DEFAULT_SPLIT, SKIP, ConvertOptions
from beam_jobs.references.labels import Labels
from beam_jobs.references.notes import TEXT_FOLDERS, Note, ignore_note
from beam_jobs.references.packs.columns import join_columns
from beam_jobs.references.packs.listed_pack import NOT_HELD, ListedPack
from beam_jobs.references.packs.pack import Pack
from beam_jobs.references.packs.packed_keys import PackedKeys
from beam_jobs.references.reference import WHOLE_FILE
from beam_jobs.references.rejection import Reject, raise_rejection
from beam_jobs.sources.named_splits import NamedSplits
from beam_jobs.sources.source import PackSource
from beam_jobs.sources.text.document_columns import DocumentColumns
from beam_jobs.sources.text.names import TextFiles, text_files, text_names, text_ranges
from beam_jobs.sources.text.runs import cut_run, gather_runs
from beam_jobs.text_files.document import DocumentBlock, TextPart
from beam_jobs.text_files.documents import RANGE_BYTES, document_blocks, text_parts
from beam_jobs.text_files.options import FILES, TextOptions
from beam_jobs.text_files.parallel_lines import names_each_file
from tpudata.errors import UsageError

# Smaller documents are written aside: a separate read costs more than reading so much twice.
SMALL_BYTES = 1 << 16
RUN_DOCUMENTS = 1 << 16
# Files that are listed together if they are small.
_UNIT_FILES = 1000
# Documents of a file, after the split that its place gives; an empty one if the options assign splits, for all of an input.
_SplitBlock: TypeAlias = "tuple[str, DocumentBlock]"


class TextUnit(NamedTuple):
    """Files, or parts of files, that are listed together.

    Attributes:
        parts: files or parts of them, each with the split that its place says, or an empty one.
    """

    parts: tuple[tuple[TextPart, str], ...]


@dataclasses.dataclass(frozen=True)
class TextSource(PackSource):
    """The documents of files.

    Attributes:
        options: options with the splits and the seed of the order.
        text: form and fields of documents.
        splits: splits in the names of the files.
        columns: reader of classes and keys of documents.
        note: gets columns that are not stored, and folders that look like classes.
        range_bytes: target size of a part of a file, and of files that are listed together.
        run_documents: number of documents that are sorted and written aside together.
        small_bytes: bytes of the smallest document that is not written aside.
    """

    options: ConvertOptions
    text: TextOptions
    splits: NamedSplits
    columns: DocumentColumns
    note: Note = ignore_note
    range_bytes: int = RANGE_BYTES
    run_documents: int = RUN_DOCUMENTS
    small_bytes: int = SMALL_BYTES

    def noting(self, note: Note) -> TextSource:
        """Return the source that notes."""
        return dataclasses.replace(self, note=note)

    @classmethod
    def find(cls, options: ConvertOptions, text: TextOptions) -> TextSource:
        """Look at the names in the input's folder, and at the first document if it has a label.

        Args:
            options: options of the conversion.
            text: form and fields of documents.

        Raises:
            SourceError: there are no files, or their names are ambiguous about splits.
            UsageError: the options assign splits, but the input has splits itself.
        """
        names = text_names(options.input)
        if text.targets_file is not None and len(names) > 1 and not names_each_file(text.targets_file):
            raise UsageError(
                f"--targets-file {text.targets_file}: one file for several inputs (got {', '.join(names[:3])}, ...). Put * in place"
                " of their names without the last ending"
            )
        splits = NamedSplits.find(options, names)
        ranges = text_ranges(options.input)
        files = itertools.chain.from_iterable(text_files(range_of_files, []) for range_of_files in ranges)
        return cls(options, text, splits, DocumentColumns.find(text, splits, files))

    @property
    def has_classes(self) -> bool:
        """Whether documents have classes."""
        return self.text.labels.are_stored

    @property
    def several_labels(self) -> bool:
        """Whether a document may have any number of classes."""
        return self.columns.several

    @property
    def labels(self) -> Labels | None:
        """None without classes, those of `--labels FILE` or of a schema's metadata, or None where they are collected."""
        return self.columns.classes.labels if self.has_classes else Labels(())

    @property
    def integer_labels(self) -> bool:
        """Whether class names are whole numbers that are the labels themselves."""
        return self.columns.classes.collects_integers

    @property
    def named_splits(self) -> frozenset[str]:
        """The splits that the names of the files stand for."""
        return self.splits.named

    @property
    def has_own_packs(self) -> bool:
        """Packs end with runs of some 65,536 documents."""
        return True

    def parts(self) -> Iterator[TextFiles]:
        """Yield ranges of the files."""
        return text_ranges(self.options.input)

    def units(self, part: TextFiles, ignored: list[str]) -> Iterator[TextUnit]:
        """Yield files in the order of their names, large ones in parts, small ones together.

        Args:
            part: one of `parts()`.
            ignored: gets the path of each file and folder that is skipped by its name.

        Raises:
            SourceError: the name of a file leaves a doubt about splits.
        """
        group: list[tuple[TextPart, str]] = []
        size = 0
        for text in text_parts(text_files(part, ignored), self.text, self.range_bytes):
            split = self.splits.find_split(text.file.name)
            self._note_folder(text.file.name, split)
            group.append((text, split))
            size += text.stop - text.start if text.form is None else self.range_bytes
            if size >= self.range_bytes or len(group) >= _UNIT_FILES:
                yield TextUnit(tuple(group))
                group, size = [], 0
        if group:
            yield TextUnit(tuple(group))

    def _note_folder(self, name: str, split: str) -> None:
        """Note the folder of a file that is one document: it may be its class."""
        folders = name.split("/")[:-1]
        if self.text.labels.are_stored:
            return
        if self.text.form == FILES and len(folders) > bool(split and folders and self.splits.split_of(folders[0])):
            self.note(TEXT_FOLDERS, folders[-1])

    def packs(self, unit: TextUnit, ignored: list[str], reject: Reject = raise_rejection) -> Iterator[ListedPack]:
        """Yield the documents of a unit by column, see `PackSource`; shuffled, each run sorted by position."""
        del ignored
        for run in gather_runs(self._read_blocks(unit, reject), _measure, self.run_documents):
            yield from cut_run(self._list_run(run), self.options)

    def _read_blocks(self, unit: TextUnit, reject: Reject) -> Iterator[_SplitBlock]:
        """Yield the split and the documents of blocks, with classes and keys, cut to the size of runs."""
        for part, split in unit.parts:
            skips = self.options.on_bad_record == SKIP
            self.columns.check_file(part.file)
            for block in document_blocks(part, self.text, reject, self.note, skips=skips):
                for start in range(0, len(block.spans.sizes), self.run_documents):
                    spans = block.spans.take(slice(start, start + self.run_documents))
                    labelled_block = self.columns.add_to(block._replace(spans=spans), reject, self.note)
                    if labelled_block is not None:
                        yield split, labelled_block

    def _list_run(self, run: Sequence[_SplitBlock]) -> ListedPack:
        """Return the documents of a run as a pack of references; small ones are held if records are shuffled."""
        own_splits, blocks = zip(*run, strict=True)
        counts = [len(block.spans.sizes) for block in blocks]
        rows = np.repeat(np.arange(len(blocks)), counts)
        sizes, offsets, starts = (
            np.concatenate([getattr(block.spans, name) for block in blocks]) for name in ("sizes", "offsets", "starts")
        )
        is_addressed = np.repeat([block.is_addressed for block in blocks], counts)
        if self.options.shuffle:
            is_addressed &= (sizes >= self.small_bytes) | (offsets == WHOLE_FILE)
        starts[is_addressed] = NOT_HELD
        keys = [block.keys for block in blocks]
        digests = np.concatenate([pack_keys.digests() for pack_keys in keys])
        if own_splits[0]:
            splits = join_columns([[split] for split in own_splits], counts)
        else:
            splits = self.options.split.assign_splits(digests[:, 0]) if self.options.split else [DEFAULT_SPLIT]
        paths = join_columns([[block.file.path] for block in blocks], counts)
        payloads = join_columns([[block.form] for block in blocks], counts)
        labels = join_columns([list(block.labels) for block in blocks], counts)
        pack = Pack.from_columns(
            PackedKeys.join(keys), sizes, offsets, paths=paths, splits=splits, labels=labels, payloads=payloads
        )
        return ListedPack(pack, digests, [block.spans.data for block in blocks], rows, starts)


def _measure(split_block: _SplitBlock) -> tuple[int, int]:
    """Return the bytes that documents hold, and their number."""
    _, block = split_block
    return len(block.spans.data), len(block.spans.sizes)

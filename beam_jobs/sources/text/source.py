"""Files of text: a Source whose records are documents.

With a shuffle, small documents are read while they are listed, and spooled (see beam_jobs.steps.listing.list_references) in runs of
16 MiB, each sorted by position in the shuffled order. A shard then finds its part of each run in one place; reading a million lines
from the input would be a million reads. Large documents, and all documents without a shuffle, are read from the input.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np

from beam_jobs.options import DEFAULT_SPLIT, SKIP, ConvertOptions
from beam_jobs.references.labels import NO_LABELS, Labels
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
from beam_jobs.sources.text.names import TextFiles, divide_input, list_files, list_first_names
from beam_jobs.sources.text.runs import divide_run, gather_runs
from beam_jobs.text_files.document import DocumentBlock, TextPart
from beam_jobs.text_files.documents import RANGE_BYTES, document_blocks, text_parts
from beam_jobs.text_files.options import FILES, TextOptions
from beam_jobs.text_files.parallel_lines import names_each_file
from tpudata.errors import UsageError

# Smaller documents are spooled: reading and writing them once more costs less than a separate read of each.
SMALL_BYTES = 1 << 16
MAX_RUN_DOCUMENTS = 1 << 16
# Maximum number of small files that are listed together.
_MAX_UNIT_FILES = 1000
# (split, documents of a file): either all blocks of an input have the split of their file's name, or all an empty string.
_SplitBlock: TypeAlias = "tuple[str, DocumentBlock]"


class TextUnit(NamedTuple):
    """Files, or parts of files, that are listed together.

    Attributes:
        parts: files or parts of files, each with the split that the file's name stands for, or an empty string.
    """

    parts: tuple[tuple[TextPart, str], ...]


@dataclasses.dataclass(frozen=True)
class TextSource(PackSource):
    """The documents of files.

    Attributes:
        options: options with the splits and the seed of the order.
        text: form and fields of documents.
        splits: splits that the names of the files stand for.
        columns: rules for classes and keys of documents.
        note: called with the kind of a note and an example: a column that is not stored, a folder that looks like a class, a
            label from which blanks are removed, or a file that was recognized as rows or lines.
        range_bytes: target size of a part of a file, and of small files that are listed together.
        max_run_documents: number of documents from which a run ends.
        small_bytes: size of the smallest document that is not spooled.
    """

    options: ConvertOptions
    text: TextOptions
    splits: NamedSplits
    columns: DocumentColumns
    note: Note = ignore_note
    range_bytes: int = RANGE_BYTES
    max_run_documents: int = MAX_RUN_DOCUMENTS
    small_bytes: int = SMALL_BYTES

    def noting(self, note: Note) -> TextSource:
        """Return the source that calls `note`, see the attribute."""
        return dataclasses.replace(self, note=note)

    @classmethod
    def open(cls, options: ConvertOptions, text: TextOptions) -> TextSource:
        """Open the source, after a look at the names in the input's folder and, for labels in rows, at the first document.

        Args:
            options: options of the conversion.
            text: form and fields of documents.

        Raises:
            SourceError: there are no files, their names are ambiguous about splits, or the file of `--labels` is invalid.
            UsageError: the options assign splits, but the input has splits itself; or one `--targets-file` is for several inputs.
        """
        names = list_first_names(options.input)
        if text.targets_file is not None and len(names) > 1 and not names_each_file(text.targets_file):
            raise UsageError(
                f"--targets-file {text.targets_file}: one file for several inputs (got {', '.join(names[:3])}, ...). Put * in place"
                " of their names without the last ending"
            )
        splits = NamedSplits.infer(options, names)
        # The lists of skipped files are not needed here: `units` makes them again.
        files = itertools.chain.from_iterable(list_files(part, []) for part in divide_input(options.input))
        return cls(options, text, splits, DocumentColumns.infer(text, splits, files))

    @property
    def has_classes(self) -> bool:
        """Whether documents have classes."""
        return self.text.labels.has_classes

    @property
    def several_labels(self) -> bool:
        """Whether a document may have any number of classes."""
        return self.columns.has_several_labels

    @property
    def labels(self) -> Labels | None:
        """The classes of `--labels FILE` or a schema's metadata, None if both lack names; no classes if documents have no class."""
        return self.columns.classes.labels if self.has_classes else NO_LABELS

    @property
    def integer_labels(self) -> bool:
        """Whether class names are integers that are the labels themselves."""
        return self.columns.classes.collects_integers

    @property
    def named_splits(self) -> frozenset[str]:
        """The splits that the names of the files stand for."""
        return self.splits.named

    @property
    def has_own_packs(self) -> bool:
        """True: packs end where runs end, and runs are not joined."""
        return True

    def parts(self) -> Iterator[TextFiles]:
        """Yield the files of the input in parts, see `divide_input`."""
        return divide_input(self.options.input)

    def units(self, part: TextFiles, ignored: list[str]) -> Iterator[TextUnit]:
        """Yield files in the order of their names, large ones in parts, small ones together.

        Args:
            part: one of `parts()`.
            ignored: list to which this method appends the path of each file and folder that it skips because of its name.

        Raises:
            SourceError: the name of a file is ambiguous about splits.
        """
        group: list[tuple[TextPart, str]] = []
        group_bytes = 0
        for text_part in text_parts(list_files(part, ignored), self.text, self.range_bytes):
            split = self.splits.find_split(text_part.file.name)
            self._note_folder(text_part.file.name, split)
            group.append((text_part, split))
            # The form of a part of a larger file is known already; its bounds may be row groups instead of bytes.
            ends_group = text_part.form is not None
            if not ends_group:
                group_bytes += text_part.stop - text_part.start
            if ends_group or group_bytes >= self.range_bytes or len(group) >= _MAX_UNIT_FILES:
                yield TextUnit(tuple(group))
                group, group_bytes = [], 0
        if group:
            yield TextUnit(tuple(group))

    def _note_folder(self, relative_path: str, split: str) -> None:
        """Unless classes are stored, note the folder of a file that is one document: it may be the document's class."""
        if self.text.form != FILES or self.text.labels.has_classes:
            return
        folders = relative_path.split("/")[:-1]
        # The outermost folder may be the split.
        if split and folders and self.splits.split_of(folders[0]):
            folders = folders[1:]
        if folders:
            self.note(TEXT_FOLDERS, folders[-1])

    def packs(self, unit: TextUnit, ignored: list[str], reject: Reject = raise_rejection) -> Iterator[ListedPack]:
        """Yield the documents of a unit by column, see `PackSource`.

        With a shuffle, the documents of each run are sorted by position in the shuffled order.
        """
        # `units` skips files because of their names.
        del ignored
        for run in gather_runs(self._read_blocks(unit, reject), _measure_block, self.max_run_documents):
            yield from divide_run(self._list_run(run), self.options)

    def _read_blocks(self, unit: TextUnit, reject: Reject) -> Iterator[_SplitBlock]:
        """Yield the documents of a unit with classes and keys, in blocks of at most `max_run_documents`, each with its split."""
        rejects_damage = self.options.on_bad_record == SKIP
        for part, split in unit.parts:
            self.columns.check_file(part.file)
            for block in document_blocks(part, self.text, reject, self.note, rejects_damage=rejects_damage):
                for start in range(0, len(block.spans.sizes), self.max_run_documents):
                    spans = block.spans.take(slice(start, start + self.max_run_documents))
                    labelled_block = self.columns.add_columns(block._replace(spans=spans), reject, self.note)
                    if labelled_block is not None:
                        yield split, labelled_block

    def _list_run(self, run: Sequence[_SplitBlock]) -> ListedPack:
        """Return the documents of a run as a pack of references.

        It holds the bytes of documents that no file holds unchanged and, with a shuffle, the bytes of small documents.
        """
        named_splits, blocks = zip(*run, strict=True)
        counts = [len(block.spans.sizes) for block in blocks]
        buffer_indices = np.repeat(np.arange(len(blocks)), counts)
        sizes = np.concatenate([block.spans.sizes for block in blocks])
        offsets = np.concatenate([block.spans.offsets for block in blocks])
        starts = np.concatenate([block.spans.starts for block in blocks])
        stays_in_file = np.repeat([block.is_addressed for block in blocks], counts)
        if self.options.shuffle:
            # A whole file is one read even if it is small.
            stays_in_file &= (sizes >= self.small_bytes) | (offsets == WHOLE_FILE)
        starts[stays_in_file] = NOT_HELD
        keys = [block.keys for block in blocks]
        digests = np.concatenate([pack_keys.digests() for pack_keys in keys])
        # Either all blocks have a named split, or none.
        if named_splits[0]:
            splits = join_columns([[split] for split in named_splits], counts)
        else:
            # Column 0 has the high halves of the digests, which --split takes. A column of one value holds for all documents.
            splits = self.options.split.assign_splits(digests[:, 0]) if self.options.split else [DEFAULT_SPLIT]
        paths = join_columns([[block.file.path] for block in blocks], counts)
        payloads = join_columns([[block.form] for block in blocks], counts)
        labels = join_columns([list(block.labels) for block in blocks], counts)
        pack = Pack.from_columns(
            PackedKeys.join(keys), sizes, offsets, paths=paths, splits=splits, labels=labels, payloads=payloads
        )
        return ListedPack(pack, digests, [block.spans.data for block in blocks], buffer_indices, starts)


def _measure_block(split_block: _SplitBlock) -> tuple[int, int]:
    """Return the numbers of bytes and of documents in a block."""
    _, block = split_block
    return len(block.spans.data), len(block.spans.sizes)

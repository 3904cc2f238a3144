"""Files of text: a Source whose records are documents.

Small documents are read while they are listed, so they are written aside (see beam_jobs.steps.list_references), as they will
be needed: sorted by their place in the shuffled order, 16 MB at a time. A shard then finds what it takes of each such run
side by side, where reading a million lines from where they stand would be a million reads. Large documents, and all where
the order is that of the input, are read from where they stand.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from beam_jobs.options import DEFAULT_SPLIT, ConvertOptions
from beam_jobs.references.columns import joined_columns
from beam_jobs.references.labels import Labels
from beam_jobs.references.listed_pack import NOT_HELD, ListedPack
from beam_jobs.references.pack import PACK_REFERENCES, Pack
from beam_jobs.references.packed_keys import PackedKeys
from beam_jobs.references.reference import WHOLE_FILE, Reference, key_bytes
from beam_jobs.sources.names import folder_split, is_left_behind
from beam_jobs.sources.options import refuse_split_flag
from beam_jobs.sources.source import Refuse, raise_refusal
from beam_jobs.text_files.documents import RANGE_BYTES, DocumentBlock, TextFile, TextPart, document_blocks, text_parts
from beam_jobs.text_files.options import TextOptions
from tpudata.errors import SourceError
from tpudata.format import Feature
from tpudata.storage import Entry, expand, is_pattern, split_pattern, storage_for

# Smaller documents are written aside: a read of its own costs more than reading so much twice.
SMALL_BYTES = 1 << 16
_RUN_BYTES, _RUN_DOCUMENTS = 1 << 24, 1 << 16
# Files that are listed together where they are small.
_UNIT_FILES = 1000


class TextUnit(NamedTuple):
    """What is listed on its own.

    Attributes:
        parts: files or parts of them, each with the split that its place says, or nothing.
        ignored: files that were passed over by their names; of the whole input in the first unit.
    """

    parts: tuple[tuple[TextPart, str], ...]
    ignored: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class TextSource:
    """The documents of files.

    Attributes:
        options: deal out splits and seed the order.
        text: what a document is.
        parts: the units.
    """

    options: ConvertOptions
    text: TextOptions
    parts: tuple[TextUnit, ...]
    has_classes: bool = False
    several_labels: bool = False
    integer_labels: bool = False
    extra: tuple[Feature, ...] = ()

    @classmethod
    def find(cls, options: ConvertOptions, text: TextOptions) -> TextSource:
        """Lists the files of the input.

        Raises:
            SourceError: there are none, or their names leave a doubt about splits.
            UsageError: the options deal out splits, but the input has splits itself.
        """
        ignored: list[str] = []
        files = list(_files(options.input, ignored))
        if not files:
            raise SourceError(f"{options.input} has no files to convert.")
        splits = _splits(files, options)
        return cls(options, text, tuple(_units(files, splits, text, ignored)))

    @property
    def labels(self) -> Labels:
        """None: text has no classes."""
        return Labels(())

    def units(self) -> Sequence[TextUnit]:
        """The units, in the order of the files' names."""
        return self.parts

    def references(self, unit: TextUnit, ignored: list[str], refuse: Refuse = raise_refusal) -> Iterator[Reference]:
        """Yield a reference to each document of a unit."""
        for listed in self.packs(unit, ignored, refuse):
            yield from listed.references()

    def packs(self, unit: TextUnit, ignored: list[str], refuse: Refuse = raise_refusal) -> Iterator[ListedPack]:
        """Yield the documents of a unit by column, see `PackSource`; shuffled, each run sorted by position."""
        ignored.extend(unit.ignored)
        for run in _runs(self._parts(unit, refuse)):
            listed = self._listed(run)
            rows = np.arange(len(listed.starts))
            if self.options.shuffle:
                # Neither the unit nor a record's number in it decides.
                rows = np.argsort(self.options.order.positions(listed.digests[:, 1], 0, 0), kind="stable")
            for start in range(0, len(rows), PACK_REFERENCES):
                yield listed.take(rows[start : start + PACK_REFERENCES])

    def _parts(self, unit: TextUnit, refuse: Refuse) -> Iterator[_Part]:
        for part, split in unit.parts:
            for block in document_blocks(part, self.text, refuse):
                for start in range(0, len(block.spans.sizes), _RUN_DOCUMENTS):
                    spans = block.spans.take(slice(start, start + _RUN_DOCUMENTS))
                    yield _Part(part.file.path, split, block._replace(spans=spans))

    def _listed(self, parts: Sequence[_Part]) -> ListedPack:
        counts = [len(part.block.spans.sizes) for part in parts]
        rows = np.repeat(np.arange(len(parts)), counts)
        blocks = [part.block for part in parts]
        sizes, offsets, starts = (
            np.concatenate([getattr(block.spans, name) for block in blocks]) for name in ("sizes", "offsets", "starts")
        )
        is_addressed = np.repeat([block.is_addressed for block in blocks], counts)
        if self.options.shuffle:
            is_addressed &= (sizes >= SMALL_BYTES) | (offsets == WHOLE_FILE)
        starts[is_addressed] = NOT_HELD
        keys = [block.keys() for block in blocks]
        digests = np.concatenate([some.digests() for some in keys])
        if parts[0].split:
            splits = joined_columns([[part.split] for part in parts], counts)
        else:
            splits = self.options.split.splits_of(digests[:, 0]) if self.options.split else [DEFAULT_SPLIT]
        paths = joined_columns([[part.path] for part in parts], counts)
        forms = joined_columns([[str(block.form)] for block in blocks], counts)
        pack = Pack.of_columns(PackedKeys.joined(keys), sizes, offsets, (paths, splits, [()], forms, [""], [""]))
        return ListedPack(pack, digests, [block.spans.data for block in blocks], rows, starts)


class _Part(NamedTuple):
    """Some documents of a file.

    Attributes:
        path: the file.
        split: the split that its place gives; empty if the options deal out splits, which then holds for all of an input.
        block: the documents.
    """

    path: str
    split: str
    block: DocumentBlock


def _runs(parts: Iterable[_Part]) -> Iterator[list[_Part]]:
    """Yield parts together, of 16 MB or 65,536 documents or somewhat more."""
    held: list[_Part] = []
    size = count = 0
    for part in parts:
        held.append(part)
        size += len(part.block.spans.data)
        count += len(part.block.spans.sizes)
        if size >= _RUN_BYTES or count >= _RUN_DOCUMENTS:
            yield held
            held, size, count = [], 0, 0
    if held:
        yield held


def _files(path: str, ignored: list[str]) -> Iterator[TextFile]:
    """The files of the input in the order of their names, hidden ones aside."""
    found = storage_for(path).stat(path)
    if found is None and not is_pattern(path):
        raise SourceError(
            f"{path} is not there. Name a file of text, a folder of such, or a pattern such as 'DIR/*.txt'."
        )
    if found is not None and not found.is_folder:
        yield TextFile(found.path, found.name, found.size)
        return
    matched = _below(path, "", ignored) if found is not None else _matched(path, ignored)
    for entry, below in sorted(matched, key=lambda item: key_bytes(item[1])):
        yield TextFile(entry.path, below, entry.size)


def _below(folder: str, prefix: str, ignored: list[str]) -> Iterator[tuple[Entry, str]]:
    for entry in storage_for(folder).list(folder):
        if is_left_behind(entry.name):
            ignored.append(entry.path)
        elif entry.is_folder:
            yield from _below(entry.path, f"{prefix}{entry.name}/", ignored)
        else:
            yield entry, f"{prefix}{entry.name}"


def _matched(pattern: str, ignored: list[str]) -> Iterator[tuple[Entry, str]]:
    folder, _ = split_pattern(pattern)
    if storage_for(folder).stat(folder) is None:
        raise SourceError(f"{pattern}: there is no folder {folder}.")
    for entry, below in expand(pattern):
        if entry.is_folder:
            continue
        if any(map(is_left_behind, below.split("/"))):
            ignored.append(entry.path)
        else:
            yield entry, below


def _splits(files: Sequence[TextFile], options: ConvertOptions) -> dict[str, str]:
    """The splits that names stand for, by the first part of a path below the input: `train/...`, `train.txt`, `train-00.jsonl`.

    Names are splits where two of them are, or all; other names beside them are an error.
    """
    names = {file.name: file.name.split("/")[0] for file in files}
    splits = {top: folder_split(top.split(".")[0].split("-")[0]) for top in names.values()}
    found = {split for split in splits.values() if split}
    others = [top for top, split in splits.items() if not split]
    if not found or (others and len(found) < 2):
        return {}
    if others:
        tops = [top for top, split in splits.items() if split]
        raise SourceError(
            f"{options.input} has {tops[0]} and {tops[1]}, which look like splits, beside {others[0]}, which does not. Move it out"
            " of the input, or name the files by a pattern."
        )
    if len(found) > 1 or found != {"train"}:
        refuse_split_flag(options, f"{options.input} has splits already ({', '.join(sorted(found))})")
    elif options.split:
        return {}
    return {name: splits[top] for name, top in names.items()}


def _units(
    files: Sequence[TextFile], splits: dict[str, str], text: TextOptions, ignored: Sequence[str]
) -> Iterator[TextUnit]:
    """Parts of files, small ones together."""
    held: list[tuple[TextPart, str]] = []
    size, passed_over = 0, tuple(ignored)
    for part in text_parts(files, text, RANGE_BYTES):
        held.append((part, splits.get(part.file.name, "")))
        size += part.stop - part.start if part.form is None else RANGE_BYTES
        if size >= RANGE_BYTES or len(held) >= _UNIT_FILES:
            yield TextUnit(tuple(held), passed_over)
            held, size, passed_over = [], 0, ()
    if held:
        yield TextUnit(tuple(held), passed_over)

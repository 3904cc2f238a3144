"""Files of text: a Source whose records are documents.

Small documents are read while they are listed, so they are written aside (see beam_jobs.steps.list_references), as they will
be needed: sorted by their place in the shuffled order, 16 MB at a time. A shard then finds what it takes of each such run
side by side, where reading a million lines from where they stand would be a million reads. Large documents, and all where
the order is that of the input, are read from where they stand.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from beam_jobs.options import ConvertOptions
from beam_jobs.references.labels import Labels
from beam_jobs.references.reference import WHOLE_FILE, Reference, key_digests
from beam_jobs.sources.source import Refuse, make_reference, raise_refusal
from beam_jobs.sources.text.names import NamedSplits, TextFiles, text_files, text_names, text_ranges
from beam_jobs.text_files.documents import RANGE_BYTES, Document, TextPart, documents, text_parts
from beam_jobs.text_files.options import TextOptions
from beam_jobs.text_files.values import RowForm
from tpudata.format import Feature

# Smaller documents are written aside: a separate read costs more than reading so much twice.
SMALL_BYTES = 1 << 16
_RUN_BYTES, _RUN_DOCUMENTS = 1 << 24, 1 << 16
# Files that are listed together where they are small.
_UNIT_FILES = 1000


class TextUnit(NamedTuple):
    """Files, or parts of files, that are listed together.

    Attributes:
        parts: files or parts of them, each with the split that its place says, or an empty one.
    """

    parts: tuple[tuple[TextPart, str], ...]


@dataclasses.dataclass(frozen=True)
class TextSource:
    """The documents of files.

    Attributes:
        options: deal out splits and seed the order.
        text: what a document is.
        splits: those that the names of the files stand for.
    """

    options: ConvertOptions
    text: TextOptions
    splits: NamedSplits
    has_classes: bool = False
    several_labels: bool = False
    integer_labels: bool = False
    extra: tuple[Feature, ...] = ()

    @classmethod
    def find(cls, options: ConvertOptions, text: TextOptions) -> TextSource:
        """Look at the names in the input's folder.

        Args:
            options: of the conversion.
            text: what a document is.

        Raises:
            SourceError: there are no files, or their names leave a doubt about splits.
            UsageError: the options deal out splits, but the input has splits itself.
        """
        return cls(options, text, NamedSplits.find(options, text_names(options.input)))

    @property
    def labels(self) -> Labels:
        """None: text has no classes."""
        return Labels(())

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
        held: list[tuple[TextPart, str]] = []
        size = 0
        for text in text_parts(text_files(part, ignored), self.text, RANGE_BYTES):
            held.append((text, self.splits.of(text.file.name)))
            size += text.stop - text.start if text.form is None else RANGE_BYTES
            if size >= RANGE_BYTES or len(held) >= _UNIT_FILES:
                yield TextUnit(tuple(held))
                held, size = [], 0
        if held:
            yield TextUnit(tuple(held))

    def references(self, unit: TextUnit, ignored: list[str], refuse: Refuse = raise_refusal) -> Iterator[Reference]:
        """Yield a reference to each document of a unit.

        Args:
            unit: one of `units`.
            ignored: nothing is ignored here.
            refuse: called with the error of a document or file that cannot be read.
        """
        del ignored
        listed = (
            self._reference(part, split, document)
            for part, split in unit.parts
            for document in documents(part, self.text, refuse)
        )
        return self._in_runs(listed) if self.options.shuffle else listed

    def _reference(self, part: TextPart, split: str, document: Document) -> Reference:
        is_read_later = document.is_addressed and (
            not self.options.shuffle or document.size >= SMALL_BYTES or document.offset == WHOLE_FILE
        )
        return make_reference(
            self.options,
            document.key,
            path=part.file.path,
            size=document.size,
            offset=document.offset,
            split=split,
            form=_form_text(document.form),
            data=b"" if is_read_later else document.data,
        )

    def _in_runs(self, listed: Iterable[Reference]) -> Iterator[Reference]:
        held: list[Reference] = []
        size = 0
        for reference in listed:
            held.append(reference)
            size += len(reference.data)
            if size >= _RUN_BYTES or len(held) >= _RUN_DOCUMENTS:
                yield from self._sorted(held)
                held, size = [], 0
        if held:
            yield from self._sorted(held)

    def _sorted(self, references: list[Reference]) -> Iterator[Reference]:
        digests = key_digests([reference.key for reference in references])
        # Shuffled, neither the unit nor a record's number in it decides.
        positions = self.options.order.positions(digests[:, 1], 0, 0)
        return (references[row] for row in np.argsort(positions, kind="stable").tolist())


@functools.lru_cache(maxsize=1024)
def _form_text(form: RowForm) -> str:
    return str(form)

"""Files, parts of files and documents of a text input.

The key of a document is its file's path below the input and its offset, such as `books/a.txt:1234`; the path and the row number in
a Parquet file; or the path alone if the file is the document. The path of a compressed file is that of the file inside.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from beam_jobs.compression.files import strip_compression
from beam_jobs.references.packs.columns import narrow
from beam_jobs.references.packs.packed_keys import PackedKeys
from beam_jobs.references.reference import WHOLE_FILE
from beam_jobs.text_files.document_form import RowForm
from beam_jobs.text_files.forms import TextForm
from beam_jobs.text_files.spans.blocks import SpanBlock


class TextFile(NamedTuple):
    """A file of the input.

    Attributes:
        path: full path.
        name: path below the input, with `/`.
        size: size in bytes.
    """

    path: str
    name: str
    size: int


class TextPart(NamedTuple):
    """Unit of listing: a file, or a part of it.

    Attributes:
        file: file that contains the part.
        form: form of the file; None if it is unknown, and the worker has to detect it.
        start: first byte at which a document of the part may begin, or first row group of a Parquet file.
        stop: byte or row group after the part.
    """

    file: TextFile
    form: TextForm | None
    start: int
    stop: int


class DocumentBlock(NamedTuple):
    """Documents of one file, in order.

    Attributes:
        file: file that contains the documents.
        form: rules for reading the bytes.
        spans: positions of the documents; without data for whole files that are not compressed.
        is_addressed: whether a document is the bytes of the file at its span, so that a reference needs no data.
        labels: names of the classes of each document, or a single value that all share.
        own_keys: keys from a field of the documents; None if keys are made of positions.
    """

    file: TextFile
    form: RowForm
    spans: SpanBlock
    is_addressed: bool
    labels: Sequence[tuple[str, ...]] = ((),)
    own_keys: PackedKeys | None = None

    @property
    def is_whole_file(self) -> bool:
        """Whether the file is one document, whose key is the name of the file."""
        return int(self.spans.offsets[0]) == WHOLE_FILE

    @property
    def keys(self) -> PackedKeys:
        """The keys of the documents: `own_keys` or, if it is None, `NAME:OFFSET`; NAME alone for a file that is one document."""
        if self.own_keys is not None:
            return self.own_keys
        name = strip_compression(self.file.name)
        return (
            PackedKeys([name], numbers=None)
            if self.is_whole_file
            else PackedKeys([f"{name}:"], narrow(self.spans.offsets))
        )

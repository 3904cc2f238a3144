"""Files, parts of files and documents of a text input.

The key of a document is its file's path below the input and its offset, such as `books/a.txt:1234`, or its row number in a Parquet
file, or the path alone if the file is the document. The key of a compressed file is that of the file inside.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

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
        file: the file.
        form: form of the file; None if unknown, to be found by the worker.
        start: first byte at which a document of the part may begin, or first row group of a Parquet file.
        stop: byte or row group after the part.
    """

    file: TextFile
    form: TextForm | None
    start: int
    stop: int


class Document(NamedTuple):
    """One document.

    Attributes:
        key: unique key in the input.
        offset: offset in the file, or WHOLE_FILE; before compression for a compressed file; row number for Parquet.
        size: size in bytes.
        form: rules for reading the bytes.
        data: its bytes; empty for a whole file that is not compressed, which is not read here.
        is_addressed: whether `size` bytes from `offset` of the file are the document, so that a reference needs no data.
    """

    key: str
    offset: int
    size: int
    form: RowForm
    data: bytes
    is_addressed: bool


class DocumentBlock(NamedTuple):
    """Documents of one file, in order.

    Attributes:
        name: name of the file, which begins the keys of its documents.
        form: rules for reading the bytes.
        spans: places of the documents; without data for whole files that are not compressed.
        is_addressed: as in `Document`.
    """

    name: str
    form: RowForm
    spans: SpanBlock
    is_addressed: bool

    @property
    def is_whole_file(self) -> bool:
        """Whether the file is one document, whose key is the name of the file."""
        return int(self.spans.offsets[0]) == WHOLE_FILE

    def keys(self) -> PackedKeys:
        """Return the keys of the documents."""
        if self.is_whole_file:
            return PackedKeys([self.name], None)
        return PackedKeys([f"{self.name}:"], narrow(self.spans.offsets))

    def documents(self) -> Iterator[Document]:
        """Yield the documents."""
        data = self.spans.data
        columns = (column.tolist() for column in self.spans[1:])
        for key, start, size, offset in zip(self.keys(), *columns, strict=True):
            yield Document(key, offset, size, self.form, data[start : start + size], self.is_addressed)

"""Omission of documents with the same text.

Documents are equal if the values of their text fields are, character by character: nothing is trimmed, folded or normalized, and
other fields do not count. Among equal documents the one with the smallest key is kept, whatever its split, so the result depends
only on the input, and no text is in two splits.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import apache_beam as beam
import numpy as np
from apache_beam.pvalue import TaggedOutput

from beam_jobs.planning.input_counts import InputCounts
from beam_jobs.references.packs.pack import Pack
from beam_jobs.references.packs.pack_reading import read_packs
from beam_jobs.references.reference import key_bytes
from beam_jobs.steps.global_window import put_in_global_window
from beam_jobs.steps.limited_step import LimitedStep, holds_limits
from beam_jobs.text_files.options import TextOptions
from beam_jobs.text_files.values import read_texts
from tpudata.storage import RequestLimits

DIGEST_BYTES = 16
# Names of the outputs of OmitDuplicates.
KEPT, OMITTED = "kept", "omitted"
_GROUP_COUNT = 256
# Documents that a worker holds back, so that an element for each group has some hundreds of them.
MAX_HELD_DOCUMENTS = 1 << 16


class OmitDuplicates(beam.PTransform):  # type: ignore[misc]
    """Transform that omits the duplicates from packs of references to documents.

    The outputs are `kept`, packs, and `omitted`, InputCounts of the duplicates of each pack. Documents that cannot be read are
    kept; their conversion reports them.

    Args:
        options: options of the conversion.
        limits: limits of the requests of each worker.
        max_held_documents: maximum number of documents that a worker holds back.
    """

    def __init__(
        self, options: TextOptions, limits: RequestLimits, *, max_held_documents: int = MAX_HELD_DOCUMENTS
    ) -> None:
        super().__init__()
        self._options = options
        self._limits = limits
        self._max_held_documents = max_held_documents

    def expand(self, packs: beam.PCollection) -> Any:
        """Find the documents whose texts have equal digests, and omit all but one of them from their packs."""
        named_packs = packs | "Name" >> beam.Map(_name_pack)
        duplicate_rows = (
            named_packs
            | "Digests" >> beam.ParDo(_DigestTexts(self._options, self._limits, self._max_held_documents))
            | "ByDigest" >> beam.GroupByKey()
            | "Compare" >> beam.FlatMap(_find_duplicates)
        )
        return (
            {"packs": named_packs, "rows": duplicate_rows}
            | "ByPack" >> beam.CoGroupByKey()
            | "Omit" >> beam.FlatMap(_omit_duplicates).with_outputs(OMITTED, main=KEPT)
        )


def hash_texts(texts: Sequence[str]) -> bytes:
    """Return the 128-bit BLAKE2b hash of a document's text fields, in the order of the options.

    Two documents among 10^12 share a hash by chance with a probability below 10^-14.

    Args:
        texts: the values of the text fields.

    Raises:
        UnicodeEncodeError: a text has a lone surrogate.
    """
    digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
    for text in texts:
        data = text.encode()
        # The size comes first, so that the texts "ab", "c" and "a", "bc" differ.
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.digest()


# A document: its digest, its key, the name of its pack, and its row there.
_Entry = tuple[bytes, bytes, bytes, int]


def _name_pack(data: bytes) -> tuple[bytes, bytes]:
    """Return the name of a pack, a hash of its bytes, and the bytes."""
    return hashlib.blake2b(data, digest_size=DIGEST_BYTES).digest(), data


class _DigestTexts(LimitedStep):
    """DoFn that yields (group of digests, entries of its documents), in batches of about `max_held_documents` documents."""

    def __init__(self, options: TextOptions, limits: RequestLimits, max_held_documents: int) -> None:
        super().__init__(limits)
        self._options = options
        self._max_held_documents = max_held_documents

    def start_bundle(self) -> None:
        self._entries: dict[int, list[_Entry]] = {}
        self._document_count = 0

    @holds_limits
    def process(self, element: tuple[bytes, bytes]) -> Iterator[tuple[int, list[_Entry]]]:
        """Collect the digests of a pack's texts by group, and yield all digests that are held once there are many.

        Args:
            element: (name of the pack, its bytes), from `_name_pack`.
        """
        name, data = element
        pack = Pack.from_bytes(data)
        documents = read_texts(read_packs([pack]), self._options)
        for row, (key, texts) in enumerate(zip(pack.keys, documents, strict=True)):
            if texts is not None:
                digest = hash_texts(texts)
                self._entries.setdefault(digest[0] % _GROUP_COUNT, []).append((digest, key_bytes(key), name, row))
        self._document_count += len(pack.keys)
        if self._document_count >= self._max_held_documents:
            yield from self._release()

    def finish_bundle(self) -> Iterator[Any]:
        yield from put_in_global_window(self._release())

    def _release(self) -> Iterator[tuple[int, list[_Entry]]]:
        """Yield the entries that are held, by group, and hold nothing back."""
        entries, self._entries, self._document_count = self._entries, {}, 0
        yield from entries.items()


def _find_duplicates(group: tuple[int, Iterable[list[_Entry]]]) -> Iterator[tuple[bytes, list[int]]]:
    """Yield (name of a pack, its rows that are duplicates) for the documents of a group."""
    _, entries = group
    # By digest, (key, name of the pack, row) of the document with the smallest key so far.
    kept: dict[bytes, tuple[bytes, bytes, int]] = {}
    duplicate_rows: dict[bytes, list[int]] = {}
    for digest, key, pack_name, row in itertools.chain.from_iterable(entries):
        if digest not in kept:
            kept[digest] = key, pack_name, row
            continue
        kept_key, kept_pack_name, kept_row = kept[digest]
        if key < kept_key:
            # The document that was kept so far becomes the duplicate.
            kept[digest] = key, pack_name, row
            pack_name, row = kept_pack_name, kept_row
        duplicate_rows.setdefault(pack_name, []).append(row)
    yield from duplicate_rows.items()


def _omit_duplicates(element: tuple[bytes, dict[str, Iterable[Any]]]) -> Iterator[Any]:
    """Yield the pack without its duplicates, if rows remain; if there were duplicates, also yield their InputCounts to the output
    OMITTED.

    Args:
        element: name of the pack, and {"packs": [its bytes], "rows": lists of its rows that are duplicates}.
    """
    _, grouped = element
    (data,) = grouped["packs"]
    duplicate_rows = sorted(row for rows in grouped["rows"] for row in rows)
    if not duplicate_rows:
        yield data
        return
    pack = Pack.from_bytes(data)
    duplicates = pack.take(np.array(duplicate_rows))
    counts = {
        split: (len(rows), int(duplicates.sizes[rows].sum(dtype=np.int64)))
        for split, rows in duplicates.rows_by_split()
    }
    yield TaggedOutput(OMITTED, InputCounts(duplicates=counts))
    kept_rows = np.setdiff1d(np.arange(len(pack.keys)), duplicate_rows)
    if len(kept_rows):
        yield pack.take(kept_rows).to_bytes()

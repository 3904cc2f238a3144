"""Collecting the characters of all documents, as the vocabulary of a tokenizer."""

from __future__ import annotations

from collections.abc import Iterable

import apache_beam as beam

from beam_jobs.references.packs.pack import Pack
from beam_jobs.references.packs.pack_reading import read_packs
from beam_jobs.steps.limited_step import apply_limits
from beam_jobs.text_files.options import TextOptions
from beam_jobs.text_files.values import read_texts
from tpudata.storage import RequestLimits
from tpudata.tokenizers import CharacterSet


class CollectCharacters(beam.PTransform):  # type: ignore[misc]
    """Transform from packs of references to documents to one string: all their characters, in the order of code points.

    Documents that cannot be read are skipped: the step that converts them reports them.

    Args:
        options: options of the conversion.
        limits: limits of the requests of each worker.
    """

    def __init__(self, options: TextOptions, limits: RequestLimits) -> None:
        super().__init__()
        self._options = options
        self._limits = limits

    def expand(self, packs: beam.PCollection) -> beam.PCollection:
        """Collect the characters of each pack, and join them to one string."""
        return (
            packs
            | "Characters" >> beam.Map(apply_limits(self._limits, _collect_characters), self._options)
            | beam.CombineGlobally(_merge_characters)
        )


def _collect_characters(data: bytes, options: TextOptions) -> str:
    """Return the characters of the documents in a serialized pack, each once."""
    characters = CharacterSet()
    for texts in read_texts(read_packs([Pack.from_bytes(data)]), options):
        # `texts` is None for a document that cannot be read.
        for text in texts or ():
            characters.add(text)
    return characters.characters


def _merge_characters(parts: Iterable[str]) -> str:
    """Return the characters of all strings, each once, in the order of code points."""
    return "".join(sorted(set().union(*parts)))

"""Collecting the vocabulary of characters: the step of a conversion that learns it from all documents."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import apache_beam as beam

from beam_jobs.references.packs.pack import Pack
from beam_jobs.references.packs.pack_reading import read_packs
from beam_jobs.text_files.options import TextOptions
from beam_jobs.text_files.values import readable_texts
from tpudata.storage import RequestLimits, held_request_limits
from tpudata.tokenizers import CharacterSet


class CollectCharacters(beam.PTransform):  # type: ignore[misc]
    """Turns packs of references to documents into one string: all their characters, in the order of code points.

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
        """Apply the transform."""
        return (
            packs
            | "Characters" >> beam.FlatMap(_collect_characters, self._options, self._limits)
            | beam.CombineGlobally(_Merge())
        )


class _Merge(beam.CombineFn):  # type: ignore[misc]
    """Combines strings of characters into one."""

    def create_accumulator(self) -> str:
        return ""

    def add_input(self, characters: str, new_characters: str) -> str:
        return _merge([characters, new_characters])

    def merge_accumulators(self, parts: Iterable[str]) -> str:
        return _merge(parts)

    def extract_output(self, characters: str) -> str:
        return characters


def _collect_characters(data: bytes, options: TextOptions, limits: RequestLimits) -> Iterator[str]:
    characters = CharacterSet()
    with held_request_limits(limits):
        for texts in readable_texts(read_packs([Pack.from_bytes(data)]), options):
            for text in texts or ():
                characters.add(text)
    yield characters.characters


def _merge(parts: Iterable[str]) -> str:
    return "".join(sorted(set().union(*parts)))

"""Examples, and a pipeline that writes them. Its functions load no TensorFlow in the workers that import them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import apache_beam as beam
import numpy as np

from beam_jobs import WriteTFRecordShards
from tests.beam_jobs.pipelines import local_pipeline, run_pipeline

SPECIES = ("iris", "rose", "tulip")


def flower(number: int) -> tuple[str | bytes, dict[str, Any]]:
    random = np.random.default_rng(number)
    # A key need not be text.
    return f"flower-{number}" if number % 2 else b"flower-\xff%d" % number, {
        "measured": random.normal(size=(2, 3)).astype(np.float32),
        "picture": random.integers(0, 256, (4, 4), np.uint8),
        "seen": random.integers(0, 9, number % 4),
        "name": f"flower {number}",
        "number": number,
        "label": SPECIES[number % 3],
    }


def write(
    elements: Iterable[Any], output: Path, change: Callable[[Any], Any] | None = None, workers: int = 1, **options: Any
) -> None:
    """Write examples in a pipeline of the local runner.

    Args:
        elements: examples, or what `change` makes examples of.
        output: the dataset's folder.
        change: a function of an element.
        workers: how many.
        **options: of WriteTFRecordShards.
    """
    pipeline = local_pipeline(workers)
    # Workers only get separate bundles if Create deals its elements out.
    examples = pipeline | beam.Create(list(elements), reshuffle=workers > 1)
    if change is not None:
        examples = examples | beam.Map(change)
    _ = examples | WriteTFRecordShards(output, **options)
    run_pipeline(pipeline)

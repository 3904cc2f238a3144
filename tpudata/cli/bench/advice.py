"""Advice on the stage that limits feeding."""

from __future__ import annotations

import argparse
import math

from tpudata.cli.bench.flags import changes_pixels
from tpudata.format import Dataset
from tpudata.storage import is_remote

# Bytes of a decoded image up to which resizing is not advised: the cost of a small image's record is not in its pixels.
_SMALL_IMAGE_BYTES = 64 * 64 * 3


def advise(limiting_stage: str, waits_for: str, dataset: Dataset, flags: argparse.Namespace, *, is_held: bool) -> str:
    """Return advice on the stage that limits feeding.

    Args:
        limiting_stage: name of the stage, such as `read`.
        waits_for: what feeding waits for: "cores", "storage", or "threads", which stands for work that does not run on all cores at
            the same time.
        dataset: the dataset that is fed.
        flags: flags of the command, from `parse_bench_flags`.
        is_held: whether training keeps all records in memory.
    """
    if waits_for == "storage":
        streams_advice = (
            ", read more streams (--streams, reading=tpudata.Reading(streams=N))" if is_remote(dataset.path) else ""
        )
        return (
            "The cores wait for the storage: bring the dataset nearer (a local disk, a bucket in the same region)"
            f"{streams_advice}, or keep its records in memory with cache=True."
        )
    # The stage `decode` only exists if a stage that changes pixels follows it; otherwise the last stage decodes.
    decoding_stage = "decode" if changes_pixels(flags) else "input_fn"
    if has_pictures(dataset) and limiting_stage == decoding_stage:
        return f"{_advise_on_decoding(dataset, flags)} More cores help in proportion."
    if limiting_stage == "input_fn" and changes_pixels(flags):
        advice = []
        if flags.augment:
            advice.append("Omit RandAugment, or give it fewer layers.")
        if flags.dtype != "uint8":
            advice.append("Feed uint8 (--dtype uint8), and let the model scale the pixels on the device.")
        return " ".join([*advice, "More cores help in proportion."])
    if limiting_stage == "read" and dataset.manifest.compression:
        return "Unpacking takes most: convert with --compression none. More cores help in proportion."
    cache_advice = "" if is_held else 'cache="auto" keeps parsed records in memory if they fit. '
    if waits_for == "threads":
        return f"{cache_advice}One thread puts rows together, so more cores do not help; more hosts do, and larger batches."
    return f"{cache_advice}More cores help, and so do more hosts."


def _advise_on_decoding(dataset: Dataset, flags: argparse.Namespace) -> str:
    """Return sentences on how to spend less time on decoding images."""
    # With a crop, a cache keeps encoded images.
    can_cache = flags.crop is None
    cache_advice = 'cache="auto" keeps decoded images if they fit in memory'
    if _estimate_image_bytes(dataset, flags.split) <= _SMALL_IMAGE_BYTES:
        reason = f"{cache_advice}, and" if can_cache else "Images this small need no encoding:"
        return f"{reason} convert --layout raw stores decoded ones if all have one size."
    advice = "Decode fewer pixels: convert with --resize-shorter, slightly larger than the model's input."
    return f"{advice} Or decode once: {cache_advice}." if can_cache else advice


def _estimate_image_bytes(dataset: Dataset, split_name: str) -> float:
    """Return the size of a decoded image in bytes: of its shape or, if that varies, of a split's mean record; inf if unknown."""
    for feature in dataset.manifest.features:
        if feature.encoding == "image" and feature.is_static:
            # `or 1` is for type checkers: no size of a static shape is None.
            return math.prod(size or 1 for size in feature.shape)
    split = dataset.manifest.split(split_name)
    return split.decoded_bytes / split.records if split.decoded_bytes else math.inf


def has_pictures(dataset: Dataset) -> bool:
    """Return whether records have encoded images."""
    return any(feature.is_image_file for feature in dataset.manifest.features)

"""`tpudata bench DIR`: the speed of feeding a dataset, stage by stage, its limit, and whether it is enough."""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import tpudata
from tpudata._gcs_billing import set_billing_header
from tpudata._tensorflow import require_tensorflow
from tpudata.cli.bench.text import report_text
from tpudata.console.flags import FlagParser, positive_float, positive_int
from tpudata.console.input_flags import add_input_flags
from tpudata.console.loading import uncollected_loading
from tpudata.console.quiet import quiet_loading
from tpudata.format import Dataset, open_dataset

if TYPE_CHECKING:
    from tpudata.input.input_fn import InputFn
    from tpudata.input.stage_costs import Stage

_DTYPES = ("uint8", "float32", "bfloat16", "float16")
# Stages that only read: they run once if all records are held in memory.
_READING = ("read", "check")
# Share of busy cores above which feeding is limited by the CPU; below it, by something else.
_BUSY_SHARE = 0.75
# Decoded images up to 64 x 64 x 3: what a record costs is not its pixels, so that smaller ones are no faster.
_SMALL_IMAGE_BYTES = 64 * 64 * 3


def run(argv: Sequence[str]) -> int:
    """Run the command with its flags and return its exit code."""
    flags = bench_flags(argv)
    report = measure(open_dataset(flags.folder), flags)
    if flags.json:
        json.dump(report, sys.stdout, indent=1)
        print()
    else:
        print(report_text(report))
    return 0


def bench_flags(argv: Sequence[str]) -> argparse.Namespace:
    """Return the flags of the command; UsageError if they are wrong."""
    parser = FlagParser("tpudata bench", "Measures the speed of feeding a dataset, stage by stage, and its limit.")
    parser.add_argument("folder", metavar="DIR", help="the dataset's folder")
    parser.add_argument("--split", default="train", metavar="NAME", help="split to feed (default: %(default)s)")
    parser.add_argument(
        "--batch-size", type=positive_int, required=True, metavar="N", help="records in a batch of this host"
    )
    parser.add_switch("--training", default=True, help="shuffled, as in training, or in order (default: true)")
    add_input_flags(parser)
    parser.add_argument(
        "--dtype",
        choices=_DTYPES,
        default="uint8",
        help="of images: uint8 is 0 to 255, floats are 0 to 1 (default: %(default)s)",
    )
    parser.add_argument(
        "--seconds",
        type=positive_float,
        default=5.0,
        metavar="S",
        help="duration of the measurement of each stage (default: %(default)g)",
    )
    parser.add_argument(
        "--step-time",
        type=positive_float,
        metavar="MS",
        help="milliseconds of a step on the device: reports whether the device will wait, and for what",
    )
    parser.add_switch("--json", default=False, help="print one JSON object, for programs")
    flags = parser.parse(argv)
    if not flags.folder:
        parser.error("DIR is empty; name the dataset's folder")
    return flags


def measure(dataset: Dataset, flags: argparse.Namespace) -> dict[str, Any]:
    """Measure a dataset, as the JSON object that `--json` prints.

    Args:
        dataset: the dataset.
        flags: flags of the command.

    Returns:
        An object with these keys:

        - `path`, `split`, `training`, `batch_size`, and the number of `cores`.
        - `is_held`: whether all records fit the shuffle's window, so that training reads them only once.
        - `stages`: of each its `name`, `does` (in words), `records_per_second`, `bytes_per_second` as stored, `cores` that were
          busy with it, `other_cores` that were busy with other programs, `cpu_seconds_per_record`, all with the stages before it,
          and `share`: the part that it adds to a record's CPU time, or to its time by the clock; null if it is run only once.
        - `limit`: name of the stage that adds most.
        - `waits_for`: "cores" if all are busy, and shares are of CPU time; otherwise "storage", or "threads": work that does not
          run on all cores at once.
        - `advice`: how to feed faster.
        - `step`: null without a step time; otherwise `milliseconds`, `records_per_second` that it takes, `is_input_bound`,
          `waiting` (share of the time that the device waits), and `cores` that would be enough, null if cores are not the limit.

    Raises:
        TpudataError: the dataset or a flag does not fit.
        MissingExtraError: TensorFlow is not installed.
    """
    set_billing_header()
    with quiet_loading(), uncollected_loading():
        require_tensorflow("tpudata bench")
        from tpudata.input.options.tokens import Tokens
        from tpudata.input.stage_costs import Stages, usable_cores

    # Made before any measurement: they check the flags.
    input_fns = _input_fns(dataset, flags)
    split = dataset.manifest.split(flags.split)
    measured = Stages(
        dataset,
        flags.split,
        training=flags.training,
        sequences=Tokens(flags.sequence_length, truncate=flags.truncate),
        batch_size=flags.batch_size,
    )
    stages = list(measured.measure(input_fns, flags.seconds))
    cores = usable_cores()
    repeated = [stage for stage in stages if not (measured.is_held and stage.name in _READING)]
    whole = stages[-1]
    is_busy = whole.cores + whole.other_cores >= _BUSY_SHARE * cores
    shares = _shares(repeated, is_busy=is_busy)
    limit = max(shares, key=lambda name: shares[name])
    waits_for = "cores" if is_busy else "storage" if limit == "read" else "threads"
    does = _does(stages, dataset, flags)
    return {
        "path": dataset.path,
        "split": flags.split,
        "training": flags.training,
        "batch_size": flags.batch_size,
        "cores": cores,
        "is_held": measured.is_held,
        "stages": [
            {
                "name": stage.name,
                "does": does[stage.name],
                "records_per_second": stage.rate,
                "bytes_per_second": stage.rate * split.bytes / split.records,
                "cores": stage.cores,
                "other_cores": stage.other_cores,
                "cpu_seconds_per_record": stage.cpu_per_record,
                "share": shares.get(stage.name),
            }
            for stage in stages
        ],
        "limit": limit,
        "waits_for": waits_for,
        "advice": _advice(limit, waits_for, dataset, flags, is_held=measured.is_held),
        "step": _step(whole, flags, is_busy=is_busy),
    }


def _input_fns(dataset: Dataset, flags: argparse.Namespace) -> dict[str, InputFn]:
    """Return the stages after parsing: decoding images, if more follows, and the whole pipeline."""
    from tpudata.input import CentreCrop, RandAugment, TrainCrop, make_input_fn

    crop = None
    if flags.crop is not None:
        crop = TrainCrop(flags.crop) if flags.training else CentreCrop(flags.crop)

    def made(dtype: str, augment: RandAugment | None) -> InputFn:
        return make_input_fn(
            dataset.path,
            flags.split,
            training=flags.training,
            images=tpudata.Images(size=flags.image_size, crop=crop, augment=augment, dtype=dtype),
            tokens=tpudata.Tokens(sequence_length=flags.sequence_length, truncate=flags.truncate),
            seed=0,
        )

    whole = made(flags.dtype, RandAugment() if flags.augment else None)
    if (_has_pictures(dataset) or crop is not None) and (flags.augment or flags.dtype != "uint8"):
        return {"decode": made("uint8", None), "input_fn": whole}
    return {"input_fn": whole}


def _image_bytes(dataset: Dataset, split: str) -> float:
    """Return the bytes of a decoded image: by its shape, else about the mean of a split; inf if neither is known."""
    for feature in dataset.manifest.features:
        if feature.encoding == "image" and feature.is_static:
            return math.prod(size or 1 for size in feature.shape)
    found = dataset.manifest.split(split)
    return found.decoded_bytes / found.records if found.decoded_bytes else math.inf


def _has_pictures(dataset: Dataset) -> bool:
    return any(feature.is_image_file for feature in dataset.manifest.features)


def _does(stages: Sequence[Stage], dataset: Dataset, flags: argparse.Namespace) -> dict[str, str]:
    """Describe what each stage does, by its name."""
    decoded = ["decode"] if _has_pictures(dataset) else []
    decoded += ["crop"] if flags.crop is not None else ["resize"] if flags.image_size is not None else []
    finished = [] if any(stage.name == "decode" for stage in stages) else decoded
    finished = [*finished, *(["augment"] if flags.augment else []), *([flags.dtype] if flags.dtype != "uint8" else [])]
    return {
        "read": f"read from the storage, {'unpack' if dataset.manifest.compression else 'compare checksums'}",
        "parse": f"+ parse, {'shuffle' if flags.training else 'in order'}",
        "decode": f"+ {', '.join(decoded)}",
        "input_fn": f"+ {', '.join([*finished, 'batch'])}: the whole input_fn",
    }


def _shares(stages: Sequence[Stage], *, is_busy: bool) -> dict[str, float]:
    """Return by stage its share of a record's CPU time if the cores are busy, otherwise of the elapsed time."""
    added, most = {}, 0.0
    for stage in stages:
        cost = stage.cpu_per_record if is_busy else 1 / stage.rate
        # A stage that is measured as cheaper than the one before it counts as free.
        added[stage.name] = max(0.0, cost - most)
        most = max(most, cost)
    return {name: cost / most for name, cost in added.items()}


def _step(whole: Stage, flags: argparse.Namespace, *, is_busy: bool) -> dict[str, Any] | None:
    if flags.step_time is None:
        return None
    needed = flags.batch_size / (flags.step_time / 1000)
    return {
        "milliseconds": flags.step_time,
        "records_per_second": needed,
        "is_input_bound": whole.rate < needed,
        "waiting": max(0.0, 1 - whole.rate / needed),
        "cores": math.ceil(whole.cpu_per_record * needed) if is_busy else None,
    }


def _advice(limit: str, waits_for: str, dataset: Dataset, flags: argparse.Namespace, *, is_held: bool) -> str:
    """Return advice on the stage that is the limit."""
    is_encoded = _has_pictures(dataset)
    if waits_for == "storage":
        return (
            "The cores wait for the storage: bring the dataset nearer (a local disk, a bucket in the same region), or keep its"
            " records in memory with cache=True."
        )
    if is_encoded and limit == ("decode" if flags.augment or flags.dtype != "uint8" else "input_fn"):
        once = 'cache="auto" keeps decoded images if they fit in memory'
        if _image_bytes(dataset, flags.split) <= _SMALL_IMAGE_BYTES:
            once = f"{once}, and" if flags.crop is None else "Images this small need no encoding:"
            return (
                f"{once} convert --layout raw stores decoded ones if all have one size. More cores help in proportion."
            )
        smaller = "Decode fewer pixels: convert with --resize-shorter, slightly larger than the model's input."
        if flags.crop is None:
            smaller += f" Or decode once: {once}."
        return f"{smaller} More cores help in proportion."
    if limit == "input_fn" and (flags.augment or flags.dtype != "uint8"):
        what = "Omit RandAugment or give it fewer layers" if flags.augment else "Feed uint8"
        return f"{what}, or let the model do it on the device: --dtype uint8. More cores help in proportion."
    if limit == "read" and dataset.manifest.compression:
        return "Unpacking takes most: convert with --compression none. More cores help in proportion."
    kept = "" if is_held else 'cache="auto" keeps parsed records in memory if they fit. '
    if waits_for == "threads":
        return f"{kept}One thread puts rows together, so more cores do not help; more hosts do, and larger batches."
    return f"{kept}More cores help, and so do more hosts."

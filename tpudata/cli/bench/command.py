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
from tpudata.cli.bench.advice import advise, has_pictures
from tpudata.cli.bench.flags import changes_pixels, parse_bench_flags
from tpudata.cli.bench.storage import StorageRates, measure_storage
from tpudata.cli.bench.text import format_report
from tpudata.cli.bench.tpu import compile_step
from tpudata.console.loading import loading_without_gc
from tpudata.console.quiet import quiet_loading
from tpudata.format import Dataset, Split, open_dataset

if TYPE_CHECKING:
    from tpudata.devices.tpu_compiler.step_cost import StepCost
    from tpudata.input.input_fn import InputFn
    from tpudata.input.options.reading import Reading
    from tpudata.input.stage_costs import Stage


# Smallest share of busy cores with which the CPU limits feeding.
_BUSY_SHARE = 0.75


def run(argv: Sequence[str]) -> int:
    """Run the command with its flags and return its exit code."""
    flags = parse_bench_flags(argv)
    report = measure(open_dataset(flags.folder), flags)
    if flags.json:
        json.dump(report, sys.stdout, indent=1)
        print()
    else:
        print(format_report(report))
    return 0


def measure(dataset: Dataset, flags: argparse.Namespace) -> dict[str, Any]:
    """Measure how fast a dataset is fed, and return the JSON object that `--json` prints.

    Args:
        dataset: the dataset to feed.
        flags: flags of the command, from `parse_bench_flags`.

    Returns:
        An object with these keys:

        - `path`, `split`, `training`, `batch_size`, and the number of `cores`.
        - `is_held`: whether all records fit the shuffle's window, so that training reads them only once.
        - `stages`: for each its `name`, `does` (its work in words), `records_per_second`, `bytes_per_second` as stored, `cores`
          that were busy with it, `other_cores` that were busy with other programs, `cpu_seconds_per_record`, all including the
          stages before it; and `share`, what it adds to a record's CPU time or elapsed time, as a share of the whole, null if it
          runs only once.
        - `limit`: name of the stage that adds most.
        - `waits_for`: "cores" if the cores are busy (shares are then of CPU time); otherwise "storage", or "threads" for work that
          does not run on all cores at the same time (shares are then of elapsed time).
        - `advice`: how to feed faster.
        - `storage`: null on a disk; for an object store `StorageRates.to_json`.
        - `step`: null without a step time; otherwise `milliseconds`, `records_per_second` that it takes, `is_input_bound`,
          `waiting` (share of the time that the device waits), `cores` that would be enough, null if cores are not the limit, and
          `storage`, its load on an object store (`StorageRates.predict_load`) or null.
        - `tpu`: null without a TPU; otherwise its `name`, `hosts`, `least_seconds` of a step, its `compiler`, the comparison with
          what a host feeds (`FeedingRate.compare`), and `storage`, its load on an object store (`StorageRates.predict_load`) or
          null.

    Raises:
        TpudataError: the dataset cannot be read, or a flag does not fit it.
        MissingExtraError: TensorFlow is not installed.
    """
    set_billing_header()
    with quiet_loading(), loading_without_gc():
        require_tensorflow("tpudata bench")
        from tpudata.input.options.columns import FeatureOptions
        from tpudata.input.options.tokens import Tokens
        from tpudata.input.stage_costs import Stages, count_usable_cores

    # These come before any measurement: the compilation checks the model, and `_make_input_fns` the flags.
    cost = None if flags.tpu is None else compile_step(flags)
    input_fns = _make_input_fns(dataset, flags)
    split = dataset.manifest.split(flags.split)
    stage_runner = Stages(
        dataset,
        flags.split,
        training=flags.training,
        feature_options=FeatureOptions(pad=dict(flags.pad)),
        tokens=Tokens(flags.sequence_length, truncate=flags.truncate),
        batch_size=flags.batch_size,
        reading=_make_reading(flags),
    )
    stages = list(stage_runner.measure(input_fns, flags.seconds))
    storage = None
    # `num_reads` is None on a disk, where records are not read in pieces.
    if stage_runner.num_reads is not None:
        storage = measure_storage(dataset, flags.split, stage_runner, stages[0], flags.seconds)
    cores = count_usable_cores()
    # Records that are all held in memory are read once.
    repeated_stages = [stage for stage in stages if not (stage_runner.is_held and stage.name == "read")]
    pipeline = stages[-1]
    is_cpu_busy = pipeline.cores + pipeline.other_cores >= _BUSY_SHARE * cores
    shares = _compute_shares(repeated_stages, is_cpu_busy=is_cpu_busy)
    limiting_stage = max(shares, key=lambda name: shares[name])
    idle_reason = "storage" if limiting_stage == "read" else "threads"
    waits_for = "cores" if is_cpu_busy else idle_reason
    work_by_stage = _describe_work(stages, dataset, flags)
    return {
        "path": dataset.path,
        "split": flags.split,
        "training": flags.training,
        "batch_size": flags.batch_size,
        "cores": cores,
        "is_held": stage_runner.is_held,
        # A stage that runs only once has no share.
        "stages": [
            _describe_stage(stage, split, work_by_stage[stage.name], shares.get(stage.name)) for stage in stages
        ],
        "limit": limiting_stage,
        "waits_for": waits_for,
        "advice": advise(limiting_stage, waits_for, dataset, flags, is_held=stage_runner.is_held),
        "storage": None if storage is None else storage.to_json(),
        "step": _describe_step(pipeline, flags, storage, is_cpu_busy=is_cpu_busy),
        "tpu": None if cost is None else _compare_with_tpu(pipeline, cost, cores, storage),
    }


def _make_input_fns(dataset: Dataset, flags: argparse.Namespace) -> dict[str, InputFn]:
    """Return the input_fns of the stages after parsing, by name: `decode`, if images are changed after it, and `input_fn`."""
    from tpudata.input import CentreCrop, RandAugment, TrainCrop, make_input_fn

    crop = None
    if flags.crop is not None:
        crop = TrainCrop(flags.crop) if flags.training else CentreCrop(flags.crop)

    def make_stage_fn(dtype: str, augment: RandAugment | None) -> InputFn:
        """Return an input_fn with the options of the command, and with this dtype and augmentation of images."""
        return make_input_fn(
            dataset.path,
            flags.split,
            training=flags.training,
            images=tpudata.Images(size=flags.image_size, crop=crop, augment=augment, dtype=dtype),
            tokens=tpudata.Tokens(sequence_length=flags.sequence_length, truncate=flags.truncate),
            pad=dict(flags.pad),
            seed=0,
            reading=_make_reading(flags),
        )

    pipeline_fn = make_stage_fn(flags.dtype, RandAugment() if flags.augment else None)
    if (has_pictures(dataset) or crop is not None) and changes_pixels(flags):
        # The stage only decodes, or crops stored pixels: it neither augments nor converts to floats.
        return {"decode": make_stage_fn("uint8", augment=None), "input_fn": pipeline_fn}
    return {"input_fn": pipeline_fn}


def _make_reading(flags: argparse.Namespace) -> Reading:
    return tpudata.Reading() if flags.streams is None else tpudata.Reading(streams=flags.streams)


def _describe_work(stages: Sequence[Stage], dataset: Dataset, flags: argparse.Namespace) -> dict[str, str]:
    """Return the work of each stage in words, by its name; the entry of `decode` is not used without the stage `decode`."""
    decoding_steps = ["decode"] if has_pictures(dataset) else []
    if flags.crop is not None:
        decoding_steps.append("crop")
    elif flags.image_size is not None:
        decoding_steps.append("resize")
    has_decoding_stage = any(stage.name == "decode" for stage in stages)
    last_steps = [
        *([] if has_decoding_stage else decoding_steps),
        *(["augment"] if flags.augment else []),
        *([flags.dtype] if flags.dtype != "uint8" else []),
        "batch",
    ]
    return {
        "read": f"read from the storage, {'unpack' if dataset.manifest.compression else 'compare checksums'}",
        "parse": f"+ parse, {'shuffle' if flags.training else 'in order'}",
        "decode": f"+ {', '.join(decoding_steps)}",
        "input_fn": f"+ {', '.join(last_steps)}: the whole input_fn",
    }


def _describe_stage(stage: Stage, split: Split, work: str, share: float | None) -> dict[str, Any]:
    """Return the entry of a stage in the report, see `measure`.

    Args:
        stage: measurement of the stage.
        split: the split that was fed.
        work: work of the stage in words.
        share: what the stage adds to the cost of a record, as a share of the whole cost; None if the stage runs only once.
    """
    return {
        "name": stage.name,
        "does": work,
        "records_per_second": stage.rate,
        "bytes_per_second": stage.rate * split.bytes / split.records,
        "cores": stage.cores,
        "other_cores": stage.other_cores,
        "cpu_seconds_per_record": stage.cpu_per_record,
        "share": share,
    }


def _compute_shares(stages: Sequence[Stage], *, is_cpu_busy: bool) -> dict[str, float]:
    """Return the share of a record's cost that each stage adds, by the stage's name.

    Args:
        stages: measurements of the stages, in order.
        is_cpu_busy: whether the cores are busy: the cost is then CPU time, otherwise elapsed time.
    """
    # Each stage also does the work of the stages before it.
    added_costs = {}
    max_cost = 0.0
    for stage in stages:
        cost = stage.cpu_per_record if is_cpu_busy else 1 / stage.rate
        # A stage that is measured as cheaper than an earlier stage counts as free.
        added_costs[stage.name] = max(0.0, cost - max_cost)
        max_cost = max(max_cost, cost)
    return {name: cost / max_cost for name, cost in added_costs.items()}


def _describe_step(
    pipeline: Stage, flags: argparse.Namespace, storage: StorageRates | None, *, is_cpu_busy: bool
) -> dict[str, Any] | None:
    """Return the entry `step` of the report, see `measure`; None without a step time.

    Args:
        pipeline: measurement of the last stage, which is the whole input_fn.
        flags: flags of the command; only the step time and the batch size are used.
        storage: rates of the object store; None on a disk.
        is_cpu_busy: whether the cores limit feeding.
    """
    if flags.step_time is None:
        return None
    needed_rate = flags.batch_size / (flags.step_time / 1000)
    return {
        "milliseconds": flags.step_time,
        "records_per_second": needed_rate,
        "is_input_bound": pipeline.rate < needed_rate,
        "waiting": max(0.0, 1 - pipeline.rate / needed_rate),
        "cores": math.ceil(pipeline.cpu_per_record * needed_rate) if is_cpu_busy else None,
        "storage": None if storage is None else storage.predict_load(needed_rate),
    }


def _compare_with_tpu(pipeline: Stage, cost: StepCost, cores: int, storage: StorageRates | None) -> dict[str, Any]:
    """Return the entry `tpu` of the report, see `measure`.

    Args:
        pipeline: measurement of the last stage, which is the whole input_fn.
        cost: cost of the model's step on the TPU.
        cores: number of cores of this machine.
        storage: rates of the object store; None on a disk.
    """
    from tpudata.devices.tpu_compiler.step_cost import FeedingRate

    comparison = FeedingRate(pipeline.rate, pipeline.cpu_per_record, cores).compare(cost)
    needed_rate = comparison["needed"]
    return {
        "name": cost.tpu.name,
        "hosts": cost.tpu.hosts,
        "compiler": cost.compiled.compiler,
        "least_seconds": cost.least_seconds,
        **comparison,
        "storage": None if storage is None or needed_rate is None else storage.predict_load(needed_rate),
    }

"""The steps of planning for plan.py, each as on a worker of an engine.

A step reads the outputs of earlier steps from files in a folder, writes its own there, and returns their sizes by name.
"""

from __future__ import annotations

import dataclasses
import json
import pickle
import shutil
import struct
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO

import apache_beam as beam
from apache_beam.pvalue import TaggedOutput

from beam_jobs.image_records.converter import ImageConverter
from beam_jobs.image_records.summary import ImageSummary
from beam_jobs.options import ConvertOptions
from beam_jobs.pipeline import FANOUT
from beam_jobs.planning.plan import Plan, SumTallies, make_plan
from beam_jobs.planning.sample import MergeSamples
from beam_jobs.references.labels import CollectLabels, Labels
from beam_jobs.references.packs.pack import Pack
from beam_jobs.references.reference import Reference
from beam_jobs.sources import Reject, make_reference, raise_rejection
from beam_jobs.sources import Source as RecordSource
from beam_jobs.steps.listing.list_references import NAMES, SAMPLE, TALLY, ListReferences
from beam_jobs.steps.listing.list_units import enumerate_units
from beam_jobs.steps.shards.group_by_shard import SplitByRun, split_by_shard
from tpudata.format import Manifest, Shard, Source, Split, shard_name

OPTIONS = ConvertOptions("/data/imagenet/train", "/data/imagenet/shards")
# Bytes of a record in a shard besides its content and its strings.
OVERHEAD = 230
_FOLDER_RECORDS = 10_000
# Most parts in which an engine lists.
_LISTINGS = 1 << 14
# Number of files over which the runs of shards are spread; one file at a time is read back into memory.
_FILES = 512
# Length before each element of a file.
_LENGTH = struct.Struct("<Q")


@dataclasses.dataclass(frozen=True)
class GeneratedFolders(RecordSource):
    """Source of generated references, in class folders; their files do not exist.

    Attributes:
        options: options of the conversion.
        record_count: number of records.
    """

    options: ConvertOptions
    record_count: int
    has_classes: bool = True

    def parts(self) -> range:
        """Return the first record of each folder."""
        return range(0, self.record_count, _FOLDER_RECORDS)

    def units(self, part: int, ignored: list[str]) -> tuple[int]:
        """Return the first record of a folder."""
        del ignored
        return (part,)

    def references(self, unit: int, ignored: list[str], reject: Reject = raise_rejection) -> Iterator[Reference]:
        """Yield the references of the folder whose first record is number `unit`."""
        del ignored, reject
        name = f"n{unit // _FOLDER_RECORDS:08d}"
        for number in range(unit, min(unit + _FOLDER_RECORDS, self.record_count)):
            key = f"{name}/{name}_{number}.JPEG"
            # Sizes from 60 to 160 kB, spread evenly.
            path, size = f"{self.options.input}/{key}", 60_000 + number * 7919 % 100_000
            yield make_reference(self.options, key, path=path, size=size, labels=(name,))


@dataclasses.dataclass
class Output:
    """Output of a step.

    Attributes:
        element_count: number of elements.
        size: their size in bytes.
        note: further information.
    """

    element_count: int = 0
    size: int = 0
    note: str = ""

    def write(self, file: BinaryIO, data: bytes) -> None:
        """Write one element."""
        file.write(_LENGTH.pack(len(data)))
        file.write(data)
        self.element_count += 1
        self.size += len(data)


def list_references(folder: Path, record_count: int) -> dict[str, Output]:
    """List all folders in parts; each part has one accumulator of each combine, since engines combine before they shuffle."""
    source = GeneratedFolders(OPTIONS, record_count)
    step = ListReferences(source, OPTIONS, ImageConverter().extra_bytes)
    units = list(enumerate_units(source, []))
    units_per_part = -(-len(units) // _LISTINGS)
    combines = _make_combines()
    outputs = {name: Output() for name in ("packs", *combines)}
    with ExitStack() as stack:
        files = {name: stack.enter_context((folder / name).open("wb")) for name in outputs}
        for start in range(0, len(units), units_per_part):
            accumulators: dict[str, Any] = {name: combine.create_accumulator() for name, combine in combines.items()}
            for element in step.process(units[start : start + units_per_part]):
                # Packs are the main output. Tagged elements are for combines; elements of other tags do not count here.
                if not isinstance(element, TaggedOutput):
                    outputs["packs"].write(files["packs"], element)
                elif element.tag in combines:
                    accumulator = accumulators[element.tag]
                    accumulators[element.tag] = combines[element.tag].add_input(accumulator, element.value)
            for name, accumulator in accumulators.items():
                outputs[name].write(files[name], pickle.dumps(accumulator, protocol=5))
    return outputs


def combine(folder: Path, record_count: int) -> dict[str, Output]:
    """Merge the accumulators of each combine into a few, as engines do with a fan-out."""
    del record_count
    outputs = {}
    for name, combine_fn in _make_combines().items():
        outputs[name] = Output()
        with (folder / f"{name}-parts").open("wb") as file:
            # Bytes of accumulators that are merged into one accumulator, and the bytes merged so far.
            share, merged_bytes = (folder / name).stat().st_size / FANOUT, 0
            accumulator = combine_fn.create_accumulator()
            for data in _read_elements(folder / name):
                accumulator = combine_fn.merge_accumulators([accumulator, pickle.loads(data)])
                merged_bytes += len(data)
                if merged_bytes >= share:
                    outputs[name].write(file, pickle.dumps(accumulator, protocol=5))
                    accumulator, merged_bytes = combine_fn.create_accumulator(), 0
            outputs[name].write(file, pickle.dumps(accumulator, protocol=5))
    return outputs


def add_up(folder: Path, record_count: int) -> dict[str, Output]:
    """Merge the few accumulators of each combine into its result, on one worker."""
    del record_count
    outputs = {}
    for name, combine_fn in _make_combines().items():
        accumulator = combine_fn.create_accumulator()
        for data in _read_elements(folder / f"{name}-parts"):
            accumulator = combine_fn.merge_accumulators([accumulator, pickle.loads(data)])
        outputs[f"sum of {name}"] = _write_value(folder / f"{name}-sum", combine_fn.extract_output(accumulator))
    return outputs


def _make_combines() -> dict[str, beam.CombineFn]:
    """Return the combines of a listing, by the tags of their inputs."""
    # False: the class names are not integers.
    return {TALLY: SumTallies(), SAMPLE: MergeSamples(), NAMES: CollectLabels(False)}


def plan_shards(folder: Path, record_count: int) -> dict[str, Output]:
    """Plan the shards, on one worker; every worker gets the plan."""
    tally = pickle.loads((folder / f"{TALLY}-sum").read_bytes())
    plan = make_plan(tally, ratios={}, options=OPTIONS, overhead=OVERHEAD)
    assert plan.input_count == record_count
    output = _write_value(folder / "plan", plan)
    output.note = f"{sum(split.shard_count for split in plan.splits.values()):,} shards"
    return {"plan": output}


def split_by_run(folder: Path, record_count: int) -> dict[str, Output]:
    """Split packs by runs of shards: neighbouring shards, whose references one worker sorts together."""
    del record_count
    plan = _read_plan(folder)
    output, step = Output(), SplitByRun()
    shutil.rmtree(folder / "runs", ignore_errors=True)
    (folder / "runs").mkdir()
    with ExitStack() as stack:
        files = [stack.enter_context((folder / "runs" / str(number)).open("wb")) for number in range(_FILES)]

        # The runs are spread over the files by their numbers.
        def write(run: tuple[str, int], pack: bytes) -> None:
            _, number = run
            output.write(files[number % _FILES], pickle.dumps((run, pack), protocol=5))

        step.start_bundle()
        for data in _read_elements(folder / "packs"):
            for run, pack in step.process(data, plan):
                write(run, pack)
        # At the end of a bundle, Beam wants values with a window.
        for windowed in step.finish_bundle():
            write(*windowed.value)
    (folder / "packs").unlink()
    return {"runs": output}


def split_runs_by_shard(folder: Path, record_count: int) -> dict[str, Output]:
    """Sort each run and split it into its shards, whose order and bytes are checked."""
    plan = _read_plan(folder)
    output, shard_sizes, most_sorted, total = Output(), [], 0, 0
    with (folder / "shards").open("wb") as file:
        for number in range(_FILES):
            packs_by_run: dict[tuple[str, int], list[bytes]] = defaultdict(list)
            for data in _read_elements(folder / "runs" / str(number)):
                run, pack = pickle.loads(data)
                packs_by_run[run].append(pack)
            for run_packs in packs_by_run.items():
                run_count = 0
                for shard in split_by_shard(run_packs, plan):
                    count, size = count_references(shard)
                    shard_sizes.append(size)
                    run_count += count
                    output.write(file, pickle.dumps(shard, protocol=5))
                most_sorted, total = max(most_sorted, run_count), total + run_count
    assert (total, sum(shard_sizes)) == (record_count, plan.bytes), f"{total} references came out of {record_count}"
    smallest, largest = min(shard_sizes) / 1e6, max(shard_sizes) / 1e6
    output.note = f"shards of {smallest:.1f} to {largest:.1f} MB; {most_sorted:,} references sorted at once"
    return {"shards": output}


def make_manifest(folder: Path, record_count: int) -> dict[str, Output]:
    """Make the manifest from the results of all shards, on one worker; each shard's result is the summary of one image."""
    plan = _read_plan(folder)
    total, shards = ImageSummary(), []
    summary = ImageSummary()
    summary.add((375, 500, 3), "n00000000/n00000000_1.JPEG")
    summary_text, count = json.dumps(summary.to_json()), plan.splits["train"].shard_count
    for number in range(count):
        total.merge(ImageSummary.from_json(json.loads(summary_text)))
        name = shard_name("train", number, count)
        shards.append(Shard(name, record_count // count, bytes=100_000_000, crc32c=number))
    labels = Labels(pickle.loads((folder / f"{NAMES}-sum").read_bytes()).names)
    manifest = Manifest(
        layout="imagenet",
        compression=None,
        splits={"train": Split(tuple(shards), total.decoded_bytes)},
        features=ImageConverter().features(total, labels),
        source=Source(OPTIONS.input, record_count, plan.bytes, plan.fingerprint),
        created_by="bench",
        labels=len(labels.names),
        rejected={},
        options={},
    )
    output = Output()
    with (folder / "manifest").open("wb") as file:
        output.write(file, manifest.to_bytes())
    return {"manifest": output}


def count_references(shard: tuple[tuple[str, int], list[bytes]]) -> tuple[int, int]:
    """Return the number of a shard's references and the number of bytes of their files; SystemExit if they are out of order.

    Args:
        shard: split and number of the shard, and its packs.
    """
    name, packed = shard
    packs = [Pack.from_bytes(data) for data in packed]
    positions = [position for pack in packs for position in pack.positions.tolist()]
    if positions != sorted(set(positions)):
        raise SystemExit(f"shard {name} is out of order")
    return len(positions), sum(int(pack.sizes.sum()) for pack in packs)


def _read_plan(folder: Path) -> Plan:
    """Return the plan that `plan_shards` wrote."""
    plan: Plan = pickle.loads((folder / "plan").read_bytes())
    return plan


def _write_value(path: Path, value: Any) -> Output:
    """Write an output of one value."""
    data = pickle.dumps(value, protocol=5)
    path.write_bytes(data)
    return Output(1, len(data))


def _read_elements(path: Path) -> Iterator[bytes]:
    """Yield the elements of an output."""
    with path.open("rb") as file:
        while head := file.read(_LENGTH.size):
            yield file.read(*_LENGTH.unpack(head))

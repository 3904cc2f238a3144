"""The steps of planning, each as on a worker of an engine: from files to files, with the size of its output."""

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
from beam_jobs.steps.shards.group_by_shard import ByRun, split_by_shard
from tpudata.format import Manifest, Shard, Source, Split, shard_name

OPTIONS = ConvertOptions("/data/imagenet/train", "/data/imagenet/shards")
OVERHEAD = 230
_FOLDER_RECORDS = 10_000
# Parts in which an engine lists at most, and files in which the runs of shards are kept: one at a time is read back.
_LISTINGS, _FILES = 1 << 14, 512
_LENGTH = struct.Struct("<Q")


@dataclasses.dataclass(frozen=True)
class MadeUpFolders(RecordSource):
    """Source of records that do not exist.

    Attributes:
        options: options of the conversion.
        records: number of records.
    """

    options: ConvertOptions
    records: int
    has_classes: bool = True

    def parts(self) -> range:
        """Return the first record of each folder."""
        return range(0, self.records, _FOLDER_RECORDS)

    def units(self, part: int, ignored: list[str]) -> tuple[int]:
        """Return the first record of a folder."""
        del ignored
        return (part,)

    def references(self, unit: int, ignored: list[str], reject: Reject = raise_rejection) -> Iterator[Reference]:
        """Yield the references of one folder."""
        del ignored, reject
        name = f"n{unit // _FOLDER_RECORDS:08d}"
        for number in range(unit, min(unit + _FOLDER_RECORDS, self.records)):
            key = f"{name}/{name}_{number}.JPEG"
            path, size = f"{self.options.input}/{key}", 60_000 + number * 7919 % 100_000
            yield make_reference(self.options, key, path=path, size=size, labels=(name,))


@dataclasses.dataclass
class Passed:
    """Output of a step.

    Attributes:
        elements: number of elements.
        size: their size in bytes.
        note: further information.
    """

    elements: int = 0
    size: int = 0
    note: str = ""

    def write(self, file: BinaryIO, data: bytes) -> None:
        """Write one element."""
        file.write(_LENGTH.pack(len(data)))
        file.write(data)
        self.elements += 1
        self.size += len(data)


def list_references(folder: Path, records: int) -> dict[str, Passed]:
    """List all folders; what is combined is passed on once for each of the parts, as engines combine before they shuffle."""
    source = MadeUpFolders(OPTIONS, records)
    step = ListReferences(source, OPTIONS, ImageConverter().text_bytes)
    units = list(enumerate_units(source, []))
    size = -(-len(units) // _LISTINGS)
    combines = _combines()
    passed = {name: Passed() for name in ("packs", *combines)}
    with ExitStack() as stack:
        files = {name: stack.enter_context((folder / name).open("wb")) for name in passed}
        for start in range(0, len(units), size):
            sums: dict[str, Any] = {name: combine.create_accumulator() for name, combine in combines.items()}
            for item in step.process(units[start : start + size]):
                if not isinstance(item, TaggedOutput):
                    passed["packs"].write(files["packs"], item)
                elif item.tag in combines:
                    sums[item.tag] = combines[item.tag].add_input(sums[item.tag], item.value)
            for name, total in sums.items():
                passed[name].write(files[name], pickle.dumps(total, protocol=5))
    return passed


def combine(folder: Path, records: int) -> dict[str, Passed]:
    """Add up what is combined into a few parts, as engines do with a fan-out."""
    del records
    passed = {}
    for name, combined in _combines().items():
        passed[name] = Passed()
        with (folder / f"{name}-parts").open("wb") as file:
            share, taken = (folder / name).stat().st_size / FANOUT, 0
            total = combined.create_accumulator()
            for data in _elements(folder / name):
                total = combined.merge_accumulators([total, pickle.loads(data)])
                taken += len(data)
                if taken >= share:
                    passed[name].write(file, pickle.dumps(total, protocol=5))
                    total, taken = combined.create_accumulator(), 0
            passed[name].write(file, pickle.dumps(total, protocol=5))
    return passed


def add_up(folder: Path, records: int) -> dict[str, Passed]:
    """Add up the parts, on one worker."""
    del records
    passed = {}
    for name, combined in _combines().items():
        total = combined.create_accumulator()
        for data in _elements(folder / f"{name}-parts"):
            total = combined.merge_accumulators([total, pickle.loads(data)])
        passed[f"sum of {name}"] = _kept(folder / f"{name}-sum", combined.extract_output(total))
    return passed


def _combines() -> dict[str, beam.CombineFn]:
    return {TALLY: SumTallies(), SAMPLE: MergeSamples(), NAMES: CollectLabels(False)}


def plan(folder: Path, records: int) -> dict[str, Passed]:
    """Cut the shards, on one worker; every worker gets the plan."""
    tally = pickle.loads((folder / f"{TALLY}-sum").read_bytes())
    made = make_plan(tally, {}, OPTIONS, OVERHEAD)
    assert made.files == records
    passed = _kept(folder / "plan", made)
    passed.note = f"{sum(split.count for split in made.splits.values()):,} shards"
    return {"plan": passed}


def by_run(folder: Path, records: int) -> dict[str, Passed]:
    """Take packs apart by runs of shards."""
    del records
    made = _plan(folder)
    passed, step = Passed(), ByRun()
    shutil.rmtree(folder / "runs", ignore_errors=True)
    (folder / "runs").mkdir()
    with ExitStack() as stack:
        files = [stack.enter_context((folder / "runs" / str(number)).open("wb")) for number in range(_FILES)]

        def write(key: tuple[str, int], data: bytes) -> None:
            passed.write(files[key[1] % _FILES], pickle.dumps((key, data), protocol=5))

        step.start_bundle()
        for data in _elements(folder / "packs"):
            for key, part in step.process(data, made):
                write(key, part)
        for last in step.finish_bundle():
            write(*last.value)
    (folder / "packs").unlink()
    return {"runs": passed}


def by_shards(folder: Path, records: int) -> dict[str, Passed]:
    """Sort each run and cut it into its shards, whose order and bytes are checked."""
    made = _plan(folder)
    passed, sizes, longest, count = Passed(), [], 0, 0
    with (folder / "shards").open("wb") as file:
        for number in range(_FILES):
            groups: dict[tuple[str, int], list[bytes]] = defaultdict(list)
            for data in _elements(folder / "runs" / str(number)):
                key, part = pickle.loads(data)
                groups[key].append(part)
            for group in groups.items():
                inside = 0
                for shard in split_by_shard(group, made):
                    found, size = counted(shard)
                    sizes.append(size)
                    inside += found
                    passed.write(file, pickle.dumps(shard, protocol=5))
                longest, count = max(longest, inside), count + inside
    assert (count, sum(sizes)) == (records, made.bytes), f"{count} references came out of {records}"
    passed.note = (
        f"shards of {min(sizes) / 1e6:.1f} to {max(sizes) / 1e6:.1f} MB; {longest:,} references sorted at once"
    )
    return {"shards": passed}


def manifest(folder: Path, records: int) -> dict[str, Passed]:
    """Make the manifest from the results of all shards, on one worker."""
    made = _plan(folder)
    total, shards = ImageSummary(), []
    summary = ImageSummary()
    summary.add((375, 500, 3), "n00000000/n00000000_1.JPEG")
    said, count = json.dumps(summary.to_json()), made.splits["train"].count
    for number in range(count):
        total.merge(ImageSummary.from_json(json.loads(said)))
        shards.append(Shard(shard_name("train", number, count), records // count, 100_000_000, number))
    labels = Labels(pickle.loads((folder / f"{NAMES}-sum").read_bytes()).names)
    whole = Manifest(
        layout="imagenet",
        compression=None,
        splits={"train": Split(tuple(shards), total.decoded_bytes)},
        features=ImageConverter().features(total, labels),
        source=Source(OPTIONS.input, records, made.bytes, made.fingerprint, 0),
        created_by="bench",
        labels=len(labels.names),
        rejected={},
        options={},
    )
    passed = Passed()
    with (folder / "manifest").open("wb") as file:
        passed.write(file, whole.to_bytes())
    return {"manifest": passed}


def counted(shard: tuple[tuple[str, int], list[bytes]]) -> tuple[int, int]:
    """Return number and bytes of the references of a shard, whose order is checked."""
    packs = [Pack.from_bytes(data) for data in shard[1]]
    positions = [position for pack in packs for position in pack.positions.tolist()]
    if positions != sorted(set(positions)):
        raise SystemExit(f"shard {shard[0]} is out of order")
    return len(positions), sum(int(pack.sizes.sum()) for pack in packs)


def _plan(folder: Path) -> Plan:
    made: Plan = pickle.loads((folder / "plan").read_bytes())
    return made


def _kept(path: Path, value: Any) -> Passed:
    data = pickle.dumps(value, protocol=5)
    path.write_bytes(data)
    return Passed(1, len(data))


def _elements(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while head := file.read(_LENGTH.size):
            yield file.read(*_LENGTH.unpack(head))

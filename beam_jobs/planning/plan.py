"""The shard plan: the number of shards, and the assignment of records to them.

Records are assigned to shards by their position in the order (see beam_jobs.references.record_order). Equal parts of the range of
positions would give shards of unequal size, so a first pass adds up the bytes of narrow parts, called buckets (see
beam_jobs.planning.tally), and shards begin and end between these. That pass gives the same result on any worker, and determines
the number and the names of all shards before the first one is written.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Mapping

import apache_beam as beam
import numpy as np
import numpy.typing as npt

from beam_jobs.options import ConvertOptions
from beam_jobs.planning.tally import BUCKET_BITS, Buckets, Tally, TallyPart
from beam_jobs.references.record_order import Positions
from beam_jobs.references.reference import HASH_BITS
from tpudata.console.tables import count_text
from tpudata.errors import SourceError, UsageError
from tpudata.format import shard_name
from tpudata.format.layout import PLAIN_SUFFIX, shard_prefix
from tpudata.format.tfrecord.framing import FRAME_BYTES

# Minimum number of parts of divided buckets in a shard: its ends are off by at most half a part, 3 % of the shard.
_MIN_SHARD_PARTS = 16
# Minimum number of records in a shard that begins inside a bucket: shuffled records are spread evenly in it, so sizes of these
# shards vary by 6 %.
_MIN_EVEN_RECORDS = 256
_BUCKET_COUNT = 1 << BUCKET_BITS
# Maximum number of shards in a group, and the approximate maximum number of references in a group of several shards.
_MAX_GROUP_SHARDS = 64
_MAX_GROUP_REFERENCES = 1 << 16


@dataclasses.dataclass(frozen=True)
class SplitPlan:
    """The shards of one split.

    Attributes:
        record_count: number of planned records.
        estimated_bytes: estimated total size of the shards, in bytes.
        starts: first position of each shard but the first, ascending.
    """

    record_count: int
    estimated_bytes: int
    starts: tuple[int, ...]

    @property
    def shard_count(self) -> int:
        """Number of shards."""
        return len(self.starts) + 1

    @functools.cached_property
    def _starts(self) -> Positions:
        """`starts` as an array, uint64 [shards - 1]."""
        return np.array(self.starts, np.uint64)

    @property
    def group_width(self) -> int:
        """Number of neighbouring shards in a group: as many as hold about 64,000 references, from 1 to 64."""
        return max(1, min(_MAX_GROUP_SHARDS, _MAX_GROUP_REFERENCES * self.shard_count // self.record_count))

    def find_shards(self, positions: Positions) -> npt.NDArray[np.intp]:
        """Return the index of the shard that holds each of the positions: intp [n] for uint64 [n]."""
        return np.searchsorted(self._starts, positions, side="right")


@dataclasses.dataclass(frozen=True)
class Plan:
    """The plan of a whole conversion.

    Attributes:
        splits: plans of the splits by name.
        input_count: number of planned inputs: files, documents or records.
        bytes: total size of the inputs.
        fingerprint: digest of all keys and sizes, which does not depend on their order.
        suffix: ending of the shards' names.
        warnings: noteworthy facts about the input, by kind; see `beam_jobs.planning.warning_lines`.
    """

    splits: dict[str, SplitPlan]
    input_count: int
    bytes: int
    fingerprint: str
    suffix: str = PLAIN_SUFFIX
    warnings: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def shard_names(self, append: int = 0) -> set[str]:
        """Return the file names of all shards; `append` is the number of the append that writes them, or 0."""
        return {
            shard_name(shard_prefix(name, append), number, split.shard_count, self.suffix)
            for name, split in self.splits.items()
            for number in range(split.shard_count)
        }


class SumTallies(beam.CombineFn):  # type: ignore[misc]
    """Combination of TallyParts into one Tally."""

    def create_accumulator(self) -> Tally:
        """Return an empty tally."""
        return Tally()

    def add_input(self, tally: Tally, part: TallyPart) -> Tally:
        """Add a part."""
        tally.add(part)
        return tally

    def merge_accumulators(self, tallies: Iterable[Tally]) -> Tally:
        """Add tallies up."""
        total = Tally()
        for tally in tallies:
            total.merge(tally)
        return total

    def extract_output(self, tally: Tally) -> Tally:
        """Return the sum."""
        return tally


def make_plan(
    tally: Tally,
    ratios: Mapping[str, float],
    options: ConvertOptions,
    overhead: int,
    omitted: Mapping[str, tuple[int, int]] | None = None,
) -> Plan:
    """Choose the number of shards of each split, and divide its positions into shards.

    Args:
        tally: tally of all references.
        ratios: by split, bytes of a record's content in a shard over its bytes in the input; 1 for a split without a ratio.
        options: options with the size or number of shards.
        overhead: bytes of a record in a shard besides its content, names and extra features.
        omitted: by split, (number, bytes in the input) of references whose records will be omitted; None if there are none.

    Raises:
        SourceError: there is nothing to convert, or no record for a split of `--split`.
        UsageError: the requested number of shards cannot be made.
    """
    if not tally.splits:
        raise SourceError(f"{options.input}: no files to convert, or only empty ones. Check the path.")
    buckets_by_split = {split: tally.add_up_buckets(split) for split in tally.splits}
    input_count = sum(int(buckets.record_counts.sum()) for buckets in buckets_by_split.values())
    empty_splits = set(options.split.shares if options.split else ()) - set(buckets_by_split)
    if empty_splits:
        raise SourceError(
            f"--split: no record falls into {', '.join(sorted(empty_splits))}; the input has {input_count}. Give it a larger"
            " share, or add records."
        )
    plans = {}
    for split, buckets in buckets_by_split.items():
        record_count = int(buckets.record_counts.sum())
        sizes = _estimate_sizes(buckets, ratios.get(split, 1.0), overhead, (omitted or {}).get(split))
        size = int(sizes.sum())
        shard_count = options.num_shards or _choose_shard_count(size, options)
        starts = buckets.starts
        # Shards of fewer than 4 buckets would differ too much in size.
        if options.shuffle and shard_count * 4 > _BUCKET_COUNT:
            starts, sizes = _divide_buckets(buckets, sizes, split, shard_count)
        first_buckets = cut_buckets(sizes, shard_count)
        _check_shard_count(split, record_count, len(first_buckets) + 1, options)
        plans[split] = SplitPlan(record_count, size, tuple(starts[first_buckets].tolist()))
    return Plan(plans, input_count, tally.bytes, tally.fingerprint)


def _estimate_sizes(
    buckets: Buckets, ratio: float, overhead: int, omitted: tuple[int, int] | None
) -> npt.NDArray[np.int64]:
    """Return the size in bytes of each bucket's records in shards, int64 [n].

    Args:
        buckets: all buckets of a split.
        ratio: bytes of a record's content in a shard over its bytes in the input.
        overhead: bytes of a record in a shard besides its content, names and extra features.
        omitted: (number, bytes in the input) of references whose records will be omitted; None if there are none.
    """
    content = np.rint(buckets.bytes * ratio).astype(np.int64)
    sizes: npt.NDArray[np.int64] = content + buckets.extra_bytes + buckets.record_counts * (overhead + FRAME_BYTES)
    if omitted is None:
        return sizes
    # The positions of omitted records are unknown here; assume that they are spread like the records that remain.
    omitted_count, omitted_bytes = omitted
    omitted_share = (omitted_bytes * ratio + omitted_count * (overhead + FRAME_BYTES)) / int(sizes.sum())
    # The omitted share is an estimate and may exceed 1; then nothing remains.
    remaining: npt.NDArray[np.int64] = np.rint(sizes * max(0.0, 1 - omitted_share)).astype(np.int64)
    return remaining


def _choose_shard_count(split_bytes: int, options: ConvertOptions) -> int:
    """Return the number of shards of a split: its bytes over the target, rounded to a multiple of `shards_multiple_of`, never 0."""
    multiple = options.shards_multiple_of
    return max(1, round(split_bytes / options.shard_bytes / multiple)) * multiple


def _divide_buckets(
    buckets: Buckets, sizes: npt.NDArray[np.int64], split: str, shard_count: int
) -> tuple[Positions, npt.NDArray[np.int64]]:
    """Return the starts and the bytes of equal parts of buckets, at least 16 for each shard.

    Args:
        buckets: all buckets of the split.
        sizes: bytes of each bucket's records in shards, int64 [n].
        split: name of the split, for the message.
        shard_count: number of shards.

    Raises:
        UsageError: shards would have too few records for even sizes.
    """
    # Each bucket is divided into 2**bits parts.
    bits = ((shard_count * _MIN_SHARD_PARTS - 1) >> BUCKET_BITS).bit_length()
    # Number of records if all buckets had as few as the emptiest, which has none if it is not listed.
    has_all_buckets = len(buckets.starts) == _BUCKET_COUNT
    lowest_record_count = int(buckets.record_counts.min()) * _BUCKET_COUNT if has_all_buckets else 0
    if lowest_record_count < shard_count * _MIN_EVEN_RECORDS:
        raise UsageError(
            f"split {split}: {count_text(shard_count, 'shard')} of {count_text(int(buckets.record_counts.sum()), 'record')}"
            f" (expected {count_text(_BUCKET_COUNT // 4, 'shard')} or fewer, or {count_text(_MIN_EVEN_RECORDS, 'record')} in each)."
            " Give a larger --shard-size, or a smaller --num-shards."
        )
    steps = np.arange(1 << bits, dtype=np.uint64) << np.uint64(HASH_BITS - BUCKET_BITS - bits)
    starts = (buckets.starts[:, None] + steps).ravel()
    # The remainder of the division is added to the first part.
    part_sizes = np.repeat((sizes >> bits)[:, None], 1 << bits, axis=1)
    part_sizes[:, 0] += sizes & ((1 << bits) - 1)
    return starts, part_sizes.ravel()


def _check_shard_count(split: str, record_count: int, shard_count: int, options: ConvertOptions) -> None:
    """Raise UsageError if a split cannot fill the number of shards that the options ask for.

    Args:
        split: name of the split, for the message.
        record_count: number of its records, for the message.
        shard_count: number of shards that it fills.
        options: options with the number of shards, or the number that it must be a multiple of.
    """
    requested, multiple = options.num_shards, options.shards_multiple_of
    if requested and shard_count < requested:
        raise UsageError(
            f"--num-shards is {requested}, but split {split} of {count_text(record_count, 'record')} fills {shard_count} of them at"
            " most without an empty one. Ask for fewer."
        )
    if shard_count % multiple:
        raise UsageError(
            f"--shards-multiple-of is {multiple}, but split {split} of {count_text(record_count, 'record')} fills"
            f" {count_text(shard_count, 'shard')}. Ask for a smaller multiple."
        )


def cut_buckets(sizes: npt.NDArray[np.int64], run_count: int) -> npt.NDArray[np.intp]:
    """Divide buckets into runs of about equal bytes, each of at least one bucket.

    Args:
        sizes: int64 [buckets]: bytes of each, more than 0.
        run_count: number of runs; there are fewer if there are fewer buckets.

    Returns:
        The index of the first bucket of each run but the first, ascending.
    """
    run_count = min(run_count, len(sizes))
    ends = np.cumsum(sizes)
    run_numbers = np.arange(1, run_count)
    # The byte at which each run but the first would begin if all runs had equal bytes.
    targets = run_numbers * (int(ends[-1]) / run_count)
    # The bucket that contains each target; a run begins with it or with the next one, whichever begins nearer to the target.
    target_buckets = np.searchsorted(ends, targets)
    starts = np.where(target_buckets > 0, ends[target_buckets - 1], 0)
    is_next_nearer = ends[target_buckets] - targets < targets - starts
    first_buckets = target_buckets + is_next_nearer
    # Moved so that every run has a bucket: they ascend by at least one, and leave a bucket for each later run.
    first_buckets = np.maximum.accumulate(np.maximum(first_buckets, 1) - run_numbers) + run_numbers
    return np.minimum(first_buckets, len(sizes) - run_count + run_numbers)

"""Options of a conversion, checked once."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from beam_jobs.options.groups import FlagGroup
from beam_jobs.options.values import DEFAULT_BUDGET, Budget, SplitShares, parse_size
from beam_jobs.references.record_order import RecordOrder
from tpudata.checked_json import FLAG, INT64_MAX, TEXT, WHOLE, Entries, Plain
from tpudata.console.option import COUNT, REQUIRED, Bounds, Stored, Value, check_options, option, stored_options
from tpudata.errors import UsageError
from tpudata.format.shards.dali_index import check_dali_index
from tpudata.format.tfrecord.gzip_blocks import GZIP
from tpudata.storage import RequestLimits

DEFAULT_SHARD_BYTES = 100_000_000
DEFAULT_SPLIT = "train"
FAIL, SKIP = "fail", "skip"
LOCAL_REQUESTS = RequestLimits()
# Engines start a process on each core of hundreds of machines, whose requests together exceed the rate of a bucket. A shard whose
# requests fail is converted again from its start, so waiting is cheaper.
REMOTE_REQUESTS = RequestLimits(read_threads=16, retry_seconds=600.0)


@dataclasses.dataclass(frozen=True)
class RunOptions:
    """Options of the run of a command."""

    dry_run: bool = option(False, FlagGroup.RUN, "print the plan, write nothing")
    workers: int = option(1, FlagGroup.RUN, "processes of the local runner (default 1)", COUNT)
    detach: bool = option(
        False,
        FlagGroup.RUN,
        "submit the job and return; for runners whose jobs outlive this process, such as DataflowRunner",
    )


@dataclasses.dataclass(frozen=True)
class PrintOptions:
    """Options of a command's printed output."""

    json: bool = option(False, FlagGroup.RUN, "print one JSON object, for programs, in place of tables")
    quiet: bool = option(False, FlagGroup.RUN, "print only errors and warnings: no tables, no progress")


@dataclasses.dataclass(frozen=True)
class ConvertOptions:
    """Options of every conversion.

    Raises:
        UsageError: a value is invalid, or two do not fit each other.
    """

    input: str = option(REQUIRED, FlagGroup.INPUT, "path of the input, local or gs://", Value("SRC"))
    output: str = option(REQUIRED, FlagGroup.OUTPUT, "folder of the dataset; new or empty", Value("DIR"))
    split: SplitShares | None = option(
        None,
        FlagGroup.OUTPUT,
        "assign records to splits by a stable hash of their path, such as train=0.9,validation=0.1 (default: the split"
        " folders of the input, or all in train)",
        Value("NAME=SHARE,...", SplitShares.parse),
        stored=Stored(Entries(TEXT), SplitShares.to_json, SplitShares.from_json),
    )
    append: bool = option(
        False,
        FlagGroup.OUTPUT,
        "add new inputs to the dataset in the output, as separate shards; options that are not passed are those of the"
        " dataset",
    )
    resume: bool = option(False, FlagGroup.OUTPUT, "continue a killed run: keep its finished shards, write the rest")
    overwrite: bool = option(
        False, FlagGroup.OUTPUT, "replace the dataset in the output: removes the files that its manifest lists"
    )
    shard_bytes: int = option(
        DEFAULT_SHARD_BYTES,
        FlagGroup.SHARDS,
        "target size of shards (default 100MB; MB is 10^6 bytes, MiB 2^20)",
        Value("SIZE", parse_size),
        flag="--shard-size",
        stored=Stored(Plain((int,), low=1)),
    )
    # Stored() without a schema: an append does not take the number of shards from the dataset, since there are fewer new inputs.
    num_shards: int | None = option(
        None, FlagGroup.SHARDS, "number of shards of every split, instead of a size", COUNT, stored=Stored()
    )
    shards_multiple_of: int = option(
        1, FlagGroup.SHARDS, "make the number of shards a multiple of N (default 1)", COUNT, stored=Stored()
    )
    shuffle: bool = option(
        True,
        FlagGroup.SHARDS,
        "order records by a hash of their path; --no-shuffle keeps the order of the input (default true)",
        stored=Stored(FLAG),
    )
    seed: int = option(
        0,
        FlagGroup.SHARDS,
        "seed of the shuffled order (default 0)",
        Value("N", int, Bounds()),
        stored=Stored(Plain((int,), low=-INT64_MAX)),
    )
    compression: str | None = option(
        None,
        FlagGroup.SHARDS,
        "compression of the shards; gzip is for text and numbers, not for images; TFDS, Grain and DALI do not read it"
        " (default none)",
        choices={"none": None, GZIP: GZIP},
        stored=Stored(TEXT),
    )
    dali_index: bool = option(
        False, FlagGroup.SHARDS, "also write index/*.idx, which NVIDIA DALI and the tfrecord package read"
    )
    label_offset: int = option(
        0,
        FlagGroup.LABELS,
        "label of the first class (default 0)",
        Value("N", int, Bounds(0, 2**31 - 1, "0, or 1 for readers that keep 0 for background")),
        stored=Stored(WHOLE),
    )
    on_bad_record: str = option(
        FAIL,
        FlagGroup.RUN,
        "fail ends with the first bad input; skip lists bad inputs in rejects/ and continues (default fail)",
        choices=(FAIL, SKIP),
    )
    max_bad_records: Budget = option(
        DEFAULT_BUDGET,
        FlagGroup.RUN,
        f"with --on-bad-record=skip: fail at the end if more were rejected (default {DEFAULT_BUDGET})",
        Value("N|P%", Budget.parse),
    )
    # None in this option and the next takes the limit of the engine.
    read_threads: int | None = option(
        None,
        FlagGroup.RUN,
        "objects that a worker process reads at the same time from gs:// and other stores (default"
        f" {LOCAL_REQUESTS.read_threads}; {REMOTE_REQUESTS.read_threads} on runners of many machines)",
        COUNT,
    )
    retry_seconds: float | None = option(
        None,
        FlagGroup.RUN,
        f"retry a failing request to gs:// for S seconds (default {LOCAL_REQUESTS.retry_seconds:g};"
        f" {REMOTE_REQUESTS.retry_seconds:g} on runners of many machines)",
        Value("S", float),
    )

    def __post_init__(self) -> None:
        check_options(self)
        for name in ("input", "output"):
            path = getattr(self, name)
            if not path.strip():
                raise UsageError(f"--{name} is empty. Pass a path.")
            # Derived paths and values must not depend on a trailing slash.
            object.__setattr__(self, name, path.rstrip("/") or "/")
        if f"{resolve_path(self.output)}/".startswith(f"{resolve_path(self.input)}/"):
            raise UsageError(
                f"--output {self.output} is inside the input {self.input}, so the next run would read it. Pass a folder outside."
            )
        passed_flags = [f"--{name}" for name in ("resume", "append", "overwrite") if getattr(self, name)]
        if len(passed_flags) > 1:
            raise UsageError(
                f"{' and '.join(passed_flags)}: choose one: resume continues a killed run, append adds new inputs (and continues a"
                " killed append), overwrite starts again"
            )
        if not self.shuffle and self.seed:
            raise UsageError("--seed sets the shuffled order, and --no-shuffle keeps that of the input. Omit one.")
        if self.num_shards and self.num_shards % self.shards_multiple_of:
            raise UsageError(
                f"--num-shards is {self.num_shards}, not a multiple of {self.shards_multiple_of} (--shards-multiple-of). Pass"
                f" {self.num_shards + -self.num_shards % self.shards_multiple_of}, or another multiple"
            )
        if self.on_bad_record == FAIL and self.max_bad_records != DEFAULT_BUDGET:
            raise UsageError(
                "--max-bad-records requires --on-bad-record=skip: without it, the first bad record ends the run"
            )
        _ = self.request_limits  # Its constructor checks the limits.
        if self.dali_index:
            check_dali_index("--dali-index", self.compression)

    @property
    def order(self) -> RecordOrder:
        """The order of records."""
        return RecordOrder(self.shuffle, self.seed)

    @property
    def request_limits(self) -> RequestLimits:
        """The limits of requests to object stores; an option that is None gets the limit of the local runner."""
        limits = LOCAL_REQUESTS
        if self.read_threads is not None:
            limits = dataclasses.replace(limits, read_threads=self.read_threads)
        if self.retry_seconds is not None:
            limits = dataclasses.replace(limits, retry_seconds=self.retry_seconds)
        return limits

    def apply_engine_limits(self, *, is_local: bool) -> ConvertOptions:
        """Return the options with limits that are None set to those of the local runner, or of an engine with many workers."""
        default = LOCAL_REQUESTS if is_local else REMOTE_REQUESTS
        return dataclasses.replace(
            self,
            read_threads=default.read_threads if self.read_threads is None else self.read_threads,
            retry_seconds=default.retry_seconds if self.retry_seconds is None else self.retry_seconds,
        )

    def deciding_options(self) -> dict[str, Any]:
        """Return the options that determine the content of the shards, for the manifest: neither paths nor options of the run."""
        split_names = [] if self.split is None else list(self.split.shares)
        # The order of the shares matters, and the manifest's JSON is sorted.
        split_order = {"split_order": split_names} if split_names != sorted(split_names) else {}
        return {**split_order, **stored_options(self)}


def resolve_path(path: str) -> str:
    """Return a path for comparison: a local one absolute and without links, a URL unchanged."""
    return path if "://" in path else str(Path(path).resolve()).rstrip("/")

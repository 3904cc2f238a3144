"""Options of a conversion, checked once."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from beam_jobs.option_values import DEFAULT_BUDGET, Budget, SplitShares
from beam_jobs.references.record_order import Order
from tpudata.errors import UsageError
from tpudata.format.shards.dali_index import check_dali_index
from tpudata.format.tfrecord.gzip_blocks import check_compression
from tpudata.storage import RequestLimits

DEFAULT_SHARD_BYTES = 100_000_000
DEFAULT_SPLIT = "train"
FAIL, SKIP = "fail", "skip"
LOCAL_REQUESTS = RequestLimits()
# Engines start a process on each core of hundreds of machines: together they ask for more than a bucket gives at once. A shard
# whose requests fail is done again from its start, so that waiting is cheaper.
REMOTE_REQUESTS = RequestLimits(read_threads=16, retry_seconds=600.0)


@dataclasses.dataclass(frozen=True)
class ConvertOptions:
    """Options of every conversion.

    Attributes:
        input: the path to convert, local or gs://.
        output: folder of the dataset.
        split: how records are dealt out; None leaves it to the input's own split folders, or puts all into `train`.
        shard_bytes: size that shards aim at.
        num_shards: number of shards of every split; None lets shard_bytes decide.
        shards_multiple_of: the number of shards of every split is a multiple of this.
        on_bad_record: `"fail"`, or `"skip"` to write rejected records to `rejects/` and go on.
        max_bad_records: how many may be skipped.
        shuffle: records are ordered by a hash of their keys; otherwise as the input lists them.
        seed: of the shuffled order.
        label_offset: label of the first class.
        compression: of the shards: None or `"gzip"`.
        dali_index: shards get an index for NVIDIA DALI, too.
        resume: an output that a killed run left is carried on.
        overwrite: a complete dataset in the output is replaced.
        append: what the input has that the complete dataset in the output has not is added to it.
        read_threads: objects that a worker process reads at the same time; None takes the default of the engine.
        retry_seconds: seconds after which a failing request to an object store is not tried again; None takes the default of
            the engine.

    Raises:
        UsageError: values that do not fit each other.
    """

    input: str
    output: str
    split: SplitShares | None = None
    shard_bytes: int = DEFAULT_SHARD_BYTES
    num_shards: int | None = None
    shards_multiple_of: int = 1
    on_bad_record: str = FAIL
    max_bad_records: Budget = DEFAULT_BUDGET
    shuffle: bool = True
    seed: int = 0
    label_offset: int = 0
    compression: str | None = None
    dali_index: bool = False
    resume: bool = False
    overwrite: bool = False
    append: bool = False
    read_threads: int | None = None
    retry_seconds: float | None = None

    def __post_init__(self) -> None:
        for name in ("input", "output"):
            path = getattr(self, name)
            if not path.strip():
                raise UsageError(f"--{name} is empty")
            # One spelling per folder, so that paths and values derived from them do not depend on a trailing slash.
            object.__setattr__(self, name, path.rstrip("/") or "/")
        if f"{_whole(self.output)}/".startswith(f"{_whole(self.input)}/"):
            raise UsageError(
                f"--output {self.output} lies in the input {self.input}, so that the next run would read it. Name a folder outside."
            )
        said = [f"--{name}" for name in ("resume", "append", "overwrite") if getattr(self, name)]
        if len(said) > 1:
            raise UsageError(
                f"{' and '.join(said)}: choose one; resume carries on a killed run, append adds what is new (and carries on a"
                " killed append), overwrite starts again"
            )
        if not self.shuffle and self.seed:
            raise UsageError(
                "--seed is of the shuffled order, and --no-shuffle keeps that of the input. Leave one out."
            )
        if self.num_shards and self.num_shards % self.shards_multiple_of:
            raise UsageError(
                f"--num-shards is {self.num_shards}, which is no multiple of {self.shards_multiple_of} (--shards-multiple-of)"
            )
        if self.on_bad_record not in (FAIL, SKIP):
            raise UsageError(f"--on-bad-record is {self.on_bad_record!r}; allowed are {FAIL} and {SKIP}")
        if self.on_bad_record == FAIL and self.max_bad_records != DEFAULT_BUDGET:
            raise UsageError(
                "--max-bad-records is for --on-bad-record=skip; without it the first bad record ends the run"
            )
        if not 0 <= self.label_offset < 2**31:
            raise UsageError(
                f"--label-offset is {self.label_offset}; it is 0, or 1 for readers that keep 0 for background"
            )
        _ = self.request_limits
        check_compression(self.compression)
        if self.dali_index:
            check_dali_index("--dali-index", self.compression)

    @property
    def order(self) -> Order:
        """The order of records."""
        return Order(self.shuffle, self.seed)

    @property
    def request_limits(self) -> RequestLimits:
        """The limits of requests to object stores; those of the local runner if none are set."""
        limits = LOCAL_REQUESTS
        if self.read_threads is not None:
            limits = dataclasses.replace(limits, read_threads=self.read_threads)
        if self.retry_seconds is not None:
            limits = dataclasses.replace(limits, retry_seconds=self.retry_seconds)
        return limits

    def for_engine(self, *, local: bool) -> ConvertOptions:
        """Return the options with the limits of requests that hold on an engine: the local runner, or one of many workers."""
        default = LOCAL_REQUESTS if local else REMOTE_REQUESTS
        return dataclasses.replace(
            self,
            read_threads=default.read_threads if self.read_threads is None else self.read_threads,
            retry_seconds=default.retry_seconds if self.retry_seconds is None else self.retry_seconds,
        )

    def deciding(self) -> dict[str, Any]:
        """Return the options that decide what the shards hold, for the manifest; neither paths nor how the run is carried out."""
        names = [] if self.split is None else list(self.split.shares)
        # The order of shares decides, too, and JSON sorts them.
        order = {"split_order": names} if names != sorted(names) else {}
        return {
            **order,
            "compression": self.compression,
            "label_offset": self.label_offset,
            "num_shards": self.num_shards,
            "seed": self.seed,
            "shard_bytes": self.shard_bytes,
            "shards_multiple_of": self.shards_multiple_of,
            "shuffle": self.shuffle,
            "split": None if self.split is None else {name: str(share) for name, share in self.split.shares.items()},
        }


def _whole(path: str) -> str:
    """Return a path as it can be compared: a local one without links and shortcuts."""
    return path if "://" in path else str(Path(path).resolve()).rstrip("/")

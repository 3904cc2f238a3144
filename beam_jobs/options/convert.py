"""Options of a conversion, checked once."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from beam_jobs.options.values import DEFAULT_BUDGET, Budget, SplitShares
from beam_jobs.references.record_order import Order
from tpudata.errors import UsageError
from tpudata.format.shards.dali_index import check_dali_index
from tpudata.format.tfrecord.gzip_blocks import check_compression
from tpudata.storage import RequestLimits

DEFAULT_SHARD_BYTES = 100_000_000
DEFAULT_SPLIT = "train"
FAIL, SKIP = "fail", "skip"
LOCAL_REQUESTS = RequestLimits()
# Engines start a process on each core of hundreds of machines, whose requests together exceed the rate of a bucket. A shard whose
# requests fail is converted again from its start, so waiting is cheaper.
REMOTE_REQUESTS = RequestLimits(read_threads=16, retry_seconds=600.0)


@dataclasses.dataclass(frozen=True)
class ConvertOptions:
    """Options of every conversion.

    Attributes:
        input: path to convert, local or gs://.
        output: folder of the dataset.
        split: shares of splits; None takes the input's split folders, or puts all records into `train`.
        shard_bytes: target size of shards, in bytes.
        num_shards: number of shards of every split; None lets shard_bytes decide.
        shards_multiple_of: number of which the number of shards of every split is a multiple.
        on_bad_record: `"fail"`, or `"skip"` to list rejected records in `rejects/` and continue.
        max_bad_records: limit of skipped records.
        shuffle: whether records are ordered by a hash of their keys; otherwise as the input lists them.
        seed: seed of the shuffled order.
        label_offset: label of the first class.
        compression: compression of the shards: None or `"gzip"`.
        dali_index: whether shards get an index for NVIDIA DALI, too.
        resume: whether to continue a killed run in the output.
        overwrite: whether to replace a complete dataset in the output.
        append: whether to add the new inputs to the complete dataset in the output.
        read_threads: number of objects that a worker process reads at the same time; None takes the default of the engine.
        retry_seconds: seconds for which a failing request to an object store is retried; None takes the default of the engine.

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
                raise UsageError(f"--{name} is empty. Pass a path")
            # One spelling per folder: derived paths and values do not depend on a trailing slash.
            object.__setattr__(self, name, path.rstrip("/") or "/")
        if f"{_whole(self.output)}/".startswith(f"{_whole(self.input)}/"):
            raise UsageError(
                f"--output {self.output} is inside the input {self.input}, so the next run would read it. Pass a folder outside."
            )
        given = [f"--{name}" for name in ("resume", "append", "overwrite") if getattr(self, name)]
        if len(given) > 1:
            raise UsageError(
                f"{' and '.join(given)}: choose one: resume continues a killed run, append adds new inputs (and continues a"
                " killed append), overwrite starts again"
            )
        if not self.shuffle and self.seed:
            raise UsageError("--seed sets the shuffled order, and --no-shuffle keeps that of the input. Omit one.")
        if self.num_shards and self.num_shards % self.shards_multiple_of:
            raise UsageError(
                f"--num-shards is {self.num_shards}, not a multiple of {self.shards_multiple_of} (--shards-multiple-of). Pass"
                f" {self.num_shards + -self.num_shards % self.shards_multiple_of}, or another multiple"
            )
        if self.on_bad_record not in (FAIL, SKIP):
            raise UsageError(f"--on-bad-record: unknown value (got {self.on_bad_record!r}, expected {FAIL} or {SKIP})")
        if self.on_bad_record == FAIL and self.max_bad_records != DEFAULT_BUDGET:
            raise UsageError(
                "--max-bad-records requires --on-bad-record=skip: without it, the first bad record ends the run"
            )
        if not 0 <= self.label_offset < 2**31:
            raise UsageError(
                f"--label-offset: out of range (got {self.label_offset}, expected 0, or 1 for readers that keep 0 for background)"
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
        """Return the options with the limits of requests of an engine: the local runner, or one of many workers."""
        default = LOCAL_REQUESTS if local else REMOTE_REQUESTS
        return dataclasses.replace(
            self,
            read_threads=default.read_threads if self.read_threads is None else self.read_threads,
            retry_seconds=default.retry_seconds if self.retry_seconds is None else self.retry_seconds,
        )

    def deciding(self) -> dict[str, Any]:
        """Return the options that decide the content of the shards, for the manifest; neither paths nor options of the run."""
        names = [] if self.split is None else list(self.split.shares)
        # The order of shares matters, too, and JSON sorts them.
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
    """Return a path for comparison: a local one resolved."""
    return path if "://" in path else str(Path(path).resolve()).rstrip("/")

"""Options of every conversion, and the values of options that several commands parse."""

from beam_jobs.options.convert import (
    DEFAULT_SHARD_BYTES,
    DEFAULT_SPLIT,
    FAIL,
    LOCAL_REQUESTS,
    REMOTE_REQUESTS,
    SKIP,
    ConvertOptions,
    PrintOptions,
    RunOptions,
)
from beam_jobs.options.values import DEFAULT_BUDGET, Budget, SplitShares, parse_size

__all__ = [
    "DEFAULT_BUDGET",
    "DEFAULT_SHARD_BYTES",
    "DEFAULT_SPLIT",
    "FAIL",
    "LOCAL_REQUESTS",
    "REMOTE_REQUESTS",
    "SKIP",
    "Budget",
    "ConvertOptions",
    "PrintOptions",
    "RunOptions",
    "SplitShares",
    "parse_size",
]

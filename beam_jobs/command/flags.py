"""The flags of every conversion."""

from __future__ import annotations

import argparse

from beam_jobs.options import (
    DEFAULT_BUDGET,
    DEFAULT_SHARD_BYTES,
    FAIL,
    LOCAL_REQUESTS,
    REMOTE_REQUESTS,
    SKIP,
    Budget,
    ConvertOptions,
    SplitShares,
    parse_size,
)
from tpudata.console.flags import FlagParser, flag_type, positive_int
from tpudata.format.tfrecord.gzip_blocks import GZIP

_NONE = "none"


def add_common_flags(parser: FlagParser, *, paths: bool = True, labels: bool = True, stored: bool = False) -> None:
    """Add the flags that `common_options` reads.

    Args:
        parser: parser that gets them.
        paths: whether to add `--input` and `--output`; False if the caller has other names for these two.
        labels: whether to add `--label-offset`; False if records have no labels.
        stored: whether inputs are stored records: they keep order and compression by default, and have no `--append`.
    """
    add = parser.add_argument
    known_by = "key" if stored else "path"
    if paths:
        add("--input", required=True, metavar="SRC", help="path of the input, local or gs://")
        add("--output", required=True, metavar="DIR", help="folder of the dataset; new or empty")
    add(
        "--split",
        type=flag_type("split", SplitShares.parse),
        metavar="NAME=SHARE,...",
        help=f"assign records to splits by a stable hash of their {known_by}, such as train=0.9,validation=0.1",
    )
    add(
        "--shard-size",
        type=flag_type("size", parse_size),
        default=DEFAULT_SHARD_BYTES,
        metavar="SIZE",
        help="target size of shards (default 100MB; MB is 10^6 bytes, MiB 2^20)",
    )
    add("--num-shards", type=positive_int, metavar="N", help="number of shards of every split, instead of a size")
    add(
        "--shards-multiple-of",
        type=positive_int,
        default=1,
        metavar="N",
        help="make the number of shards a multiple of N",
    )
    add(
        "--on-bad-record",
        choices=(FAIL, SKIP),
        default=FAIL,
        help="fail ends with the first bad input; skip lists bad inputs in rejects/ and continues (default fail)",
    )
    add(
        "--max-bad-records",
        type=flag_type("budget", Budget.parse),
        default=DEFAULT_BUDGET,
        metavar="N|P%",
        help=f"with --on-bad-record=skip: fail at the end if more were rejected (default {DEFAULT_BUDGET}%)",
    )
    parser.add_switch(
        "--shuffle",
        default=not stored,
        help=f"order records by a hash of their {'file and number' if stored else 'path'}; --no-shuffle keeps the order of the"
        f" input (default {'false' if stored else 'true'})",
    )
    add("--seed", type=int, default=0, metavar="N", help="seed of the shuffled order (default 0)")
    if labels:
        add("--label-offset", type=int, default=0, metavar="N", help="label of the first class (default 0)")
    else:
        parser.set_defaults(label_offset=0)
    add(
        "--compression",
        choices=(_NONE, GZIP),
        default=None if stored else _NONE,
        help="compression of the shards; gzip is for text and numbers, not for images; TFDS, Grain and DALI do not read it"
        f" (default {'that of the datasets' if stored else 'none'})",
    )
    parser.add_switch(
        "--dali-index", default=False, help="also write index/*.idx, which NVIDIA DALI and the tfrecord package read"
    )
    parser.add_switch("--resume", default=False, help="continue a killed run: keep its finished shards, write the rest")
    parser.add_switch(
        "--overwrite",
        default=False,
        help="replace the dataset in the output: removes the files that its manifest lists",
    )
    if stored:
        parser.set_defaults(append=False)
    else:
        parser.add_switch(
            "--append",
            default=False,
            help="add new inputs to the dataset in the output, as separate shards; options that are not passed are those of"
            " the dataset",
        )
    parser.add_switch("--dry-run", default=False, help="print the plan, write nothing")
    parser.add_switch(
        "--detach",
        default=False,
        help="submit the job and return; for runners whose jobs outlive this process, such as DataflowRunner",
    )
    add(
        "--read-threads",
        type=positive_int,
        metavar="N",
        help="objects that a worker process reads at the same time from gs:// and other stores (default"
        f" {LOCAL_REQUESTS.read_threads}; {REMOTE_REQUESTS.read_threads} on runners of many machines)",
    )
    add(
        "--retry-seconds",
        type=float,
        metavar="S",
        help="retry a failing request to gs:// for S seconds (default"
        f" {LOCAL_REQUESTS.retry_seconds:g}; {REMOTE_REQUESTS.retry_seconds:g} on runners of many machines)",
    )
    add("--workers", type=positive_int, default=1, metavar="N", help="processes of the local runner (default 1)")


def common_options(flags: argparse.Namespace) -> ConvertOptions:
    """Return the options that the flags of `add_common_flags` set; UsageError if they do not fit each other."""
    return ConvertOptions(
        input=flags.input,
        output=flags.output,
        split=flags.split,
        shard_bytes=flags.shard_size,
        num_shards=flags.num_shards,
        shards_multiple_of=flags.shards_multiple_of,
        on_bad_record=flags.on_bad_record,
        max_bad_records=flags.max_bad_records,
        shuffle=flags.shuffle,
        seed=flags.seed,
        label_offset=flags.label_offset or 0,
        compression=None if flags.compression in (None, _NONE) else flags.compression,
        dali_index=flags.dali_index,
        resume=flags.resume,
        overwrite=flags.overwrite,
        append=flags.append,
        read_threads=flags.read_threads,
        retry_seconds=flags.retry_seconds,
    )

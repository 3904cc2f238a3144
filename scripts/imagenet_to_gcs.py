"""Converts ImageNet as it comes into TFRecord shards train-* and validation-*, for tensorflow/tpu's readers and this project's.

    python scripts/imagenet_to_gcs.py --raw_data_dir=IMAGENET --local_scratch_dir=OUT [any flag of Apache Beam]

IMAGENET holds ILSVRC2012_img_train.tar or train/SYNSET/*.JPEG, and ILSVRC2012_img_val.tar or validation/*.JPEG with
synset_labels.txt beside it (either part alone will do). Each record has the nine image/* features of the original script, and
image/class/text. Labels count from 1, as tensorflow/tpu's readers expect; --label-offset=0 counts from 0.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

from beam_jobs.images import convert_images
from beam_jobs.options import DEFAULT_SHARD_BYTES, ConvertOptions, parse_size
from beam_jobs.runner import beam_flag_names, pipeline_options
from beam_jobs.sources import open_source
from beam_jobs.sources.imagenet import SYNSET_FILES, TRAIN_TAR, VALIDATION_TAR, ImageNet
from beam_jobs.table import result_table
from tpudata.errors import UsageError
from tpudata.flags import FlagParser, flag_type, positive_int
from tpudata.format import open_dataset
from tpudata.process import run_command


def run(argv: Sequence[str]) -> int:
    """Runs the conversion; the exit code is 0.

    Raises:
        TpudataError: the usage is wrong, the input is not ImageNet, or the conversion failed.
    """
    parser = FlagParser("imagenet_to_gcs.py", "Convert ImageNet into TFRecord shards.")
    add = parser.add_argument
    add(
        "--raw-data-dir",
        required=True,
        metavar="DIR",
        help=f"{TRAIN_TAR} or train/, and {VALIDATION_TAR} or validation/",
    )
    where = parser.add_mutually_exclusive_group(required=True)
    for name in ("--output", "--local-scratch-dir", "--gcs-output-path"):
        where.add_argument(
            name, dest="output", metavar="DIR", help="folder of the dataset; the three names mean the same"
        )
    add(
        "--label-offset",
        type=int,
        default=1,
        metavar="N",
        help="label of the first synset (default 1; TFDS counts from 0)",
    )
    size = flag_type("size", parse_size)
    add(
        "--shard-size",
        type=size,
        default=DEFAULT_SHARD_BYTES,
        metavar="SIZE",
        help="size that shards aim at (default 100MB)",
    )
    add("--seed", type=int, default=0, metavar="N", help="seed of the shuffled order (default 0)")
    add("--workers", type=positive_int, default=1, metavar="N", help="processes of the local runner (default 1)")
    parser.add_switch("--resume", default=False, help="carry on a killed run")
    parser.add_switch("--overwrite", default=False, help="replace the dataset in the output")
    flags, rest = parser.parse_with_rest(argv)
    beam_options, unknown = pipeline_options(rest, flags.workers)
    parser.refuse_unknown(unknown, beam_flag_names())
    options = ConvertOptions(
        input=flags.raw_data_dir,
        output=flags.output,
        shard_bytes=flags.shard_size,
        seed=flags.seed,
        label_offset=flags.label_offset,
        resume=flags.resume,
        overwrite=flags.overwrite,
    )
    if not isinstance(open_source(options), ImageNet):
        raise UsageError(
            f"--raw_data_dir {options.input} is not laid out as ImageNet. Put {TRAIN_TAR} or train/SYNSET/*.JPEG there, and"
            f" {VALIDATION_TAR} or validation/*.JPEG with {SYNSET_FILES[0]}."
        )
    started = time.monotonic()
    convert_images(options, beam_options)
    print(result_table(open_dataset(options.output).manifest, options.output, time.monotonic() - started))
    return 0


if __name__ == "__main__":
    sys.exit(run_command(run))

"""Converts ImageNet's original files into TFRecord shards train-* and validation-*, for the readers of tensorflow/tpu and tpudata.

    python scripts/imagenet_to_gcs.py --raw_data_dir=IMAGENET --local_scratch_dir=OUT [any flag of Apache Beam]
    python scripts/imagenet_to_gcs.py --raw_data_dir=IMAGENET --gcs_output_path=gs://BUCKET/OUT

IMAGENET contains ILSVRC2012_img_train.tar or train/SYNSET/*.JPEG, and ILSVRC2012_img_val.tar or validation/*.JPEG with
synset_labels.txt next to it (one of the two parts suffices). Each record has the nine image/* features of the original script, and
image/class/text. All images are JPEG, and labels count from 1, as tensorflow/tpu's readers expect; --label-offset=0 counts from 0,
and --no-jpeg-only keeps PNGs. The other flags are those of `tpudata convert images`.
"""

from __future__ import annotations

if __name__ == "__main__":
    # Before the imports below, which take most of a second, so that Ctrl-C ends the program without a traceback.
    from tpudata.console.interrupts import end_on_interrupt

    end_on_interrupt()

import sys
from collections.abc import Sequence

from beam_jobs.command.option_parser import OptionParser, read_options
from beam_jobs.command.run_conversion import check_output_is_writable, parse_flags, run_conversion
from beam_jobs.image_records.options import ImageOptions
from beam_jobs.images import make_image_conversion
from beam_jobs.options import ConvertOptions, PrintOptions, RunOptions
from beam_jobs.sources import SourceOptions
from beam_jobs.sources.folders.imagenet import SYNSET_FILES, TRAIN_TAR, VALIDATION_TAR, ImageNet
from tpudata.console.process import run_command
from tpudata.errors import UsageError

# Name of each path, its flags, and their help.
_PATHS = (
    ("input", ("--raw-data-dir", "--input"), f"{TRAIN_TAR} or train/, and {VALIDATION_TAR} or validation/"),
    ("output", ("--local-scratch-dir", "--gcs-output-path", "--output"), "folder of the dataset, local or gs://"),
)

_HELPS = {
    "label_offset": "label of the first class (default 1)",
    "jpeg_only": "store PNGs as JPEG, for readers that decode only JPEG (default true)",
}
_DEFAULTS = (
    "Unlike in `tpudata convert images`, labels count from 1 (--label-offset=0 counts from 0) and PNGs become JPEG (--no-jpeg-only"
    " keeps them)."
)


def run(argv: Sequence[str]) -> int:
    """Run the conversion; return the exit code 0.

    Raises:
        TpudataError: the usage is wrong, the input is not ImageNet, or the conversion failed.
    """
    kinds, paths = (RunOptions, PrintOptions, ConvertOptions, ImageOptions), [dest for dest, _, _ in _PATHS]
    parser = OptionParser(
        "imagenet_to_gcs.py", "Convert ImageNet into TFRecord shards.", _DEFAULTS, kinds, paths, _HELPS
    )
    for dest, (main_flag, *other_flags), help_text in _PATHS:
        group = parser.add_mutually_exclusive_group(required=True)
        group.add_argument(main_flag, dest=dest, metavar="DIR", help=help_text)
        for flag in other_flags:
            group.add_argument(flag, dest=dest, metavar="DIR", help=f"same as {main_flag}")
    flags, beam_options = parse_flags(parser, argv)
    options, run_options = read_options(ConvertOptions, flags, label_offset=1), read_options(RunOptions, flags)
    check_output_is_writable(options, beam_options, dry_run=run_options.dry_run)
    conversion = make_image_conversion(options, SourceOptions(), read_options(ImageOptions, flags, jpeg_only=True))
    if not isinstance(conversion.source, ImageNet):
        raise UsageError(
            f"--raw_data_dir {flags.input} is not laid out as ImageNet. Put {TRAIN_TAR} or train/SYNSET/*.JPEG there, and"
            f" {VALIDATION_TAR} or validation/*.JPEG with {SYNSET_FILES[0]}."
        )
    return run_conversion(conversion, beam_options, run_options, read_options(PrintOptions, flags))


if __name__ == "__main__":
    sys.exit(run_command(run))

"""`tpudata index DIR`: writes the index that NVIDIA DALI and the tfrecord package read, for an existing dataset."""

from __future__ import annotations

from collections.abc import Sequence

from tpudata.console.flags import FlagParser
from tpudata.console.tables import count_text
from tpudata.format.layout import INDEX_FOLDER
from tpudata.format.shards.dali_index import add_dali_index
from tpudata.storage import storage_for


def run(argv: Sequence[str]) -> int:
    """Run the command with its flags and return its exit code."""
    flags = new_parser().parse(argv)
    manifest = add_dali_index(flags.folder)
    folder = storage_for(flags.folder).join(flags.folder, INDEX_FOLDER)
    print(f"{folder}: wrote *.idx for {count_text(len(manifest.shard_names()), 'shard')}")
    return 0


def new_parser() -> FlagParser:
    """Return the parser of the command's flags."""
    parser = FlagParser(
        "tpudata index",
        "Write index/*.idx, which NVIDIA DALI and the tfrecord package read, for every shard of a dataset; `tpudata convert"
        " --dali-index` writes them with the dataset.",
        topics=("other_readers",),
    )
    parser.add_argument("folder", metavar="DIR", help="the dataset's folder")
    return parser

"""`tpudata report DIR`: one HTML page about a dataset."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

from tpudata.console.flags import FlagParser, positive_int
from tpudata.console.tables import bytes_text
from tpudata.errors import DatasetError, MissingExtraError, SourceError, UsageError
from tpudata.format import Dataset, open_dataset
from tpudata.report.page import report_page
from tpudata.report.sample import DEFAULT_SAMPLES, sample_dataset
from tpudata.storage import storage_for


def run(argv: Sequence[str]) -> int:
    """Run the command with its flags and return its exit code."""
    parser = new_parser()
    flags = parser.parse(argv)
    for name, path in (("DIR", flags.folder), ("--output", flags.output)):
        if not path:
            parser.error(f"{name} is empty; pass a path")
    if not flags.output.endswith((".html", ".htm")):
        # A wrong path must not replace a shard or a manifest.
        parser.error(f"--output: not the name of a page (got {flags.output}, expected a name that ends in .html)")
    dataset = open_dataset(flags.folder)
    page_text = report_page(dataset, sample_dataset(dataset, flags.samples), _open_decoder(dataset))
    # Names of folders and files that are not UTF-8 come as surrogates.
    page = page_text.encode(errors="backslashreplace")
    with storage_for(flags.output).create(flags.output) as file:
        file.write(page)
    if flags.json:
        print(json.dumps({"page": flags.output, "bytes": len(page)}, indent=1))
    else:
        print(f"{flags.output}: {bytes_text(len(page))}, opens in any browser")
    return 0


def new_parser() -> FlagParser:
    """Return the parser of the command's flags."""
    parser = FlagParser(
        "tpudata report",
        "Writes one self-contained HTML page about a dataset: pictures or texts, classes, sizes, duplicates, rejects.",
        topics=("dataset/report",),
    )
    parser.add_argument("folder", metavar="DIR", help="the dataset's folder")
    parser.add_argument(
        "--output",
        default="report.html",
        metavar="FILE",
        help="path of the page; an existing file is replaced (default: %(default)s)",
    )
    parser.add_argument(
        "--samples",
        type=positive_int,
        default=DEFAULT_SAMPLES,
        metavar="N",
        help="number of records to sample from each split, at most (default: %(default)s)",
    )
    parser.add_switch("--json", default=False, help="print one JSON object, for programs")
    return parser


def _open_decoder(dataset: Dataset) -> Callable[[Sequence[int]], str] | None:
    """Return the `decode` of the dataset's tokenizer; None without a tokenizer, or if it cannot be opened here."""
    if not isinstance(dataset.manifest.options.get("tokenizer"), dict):
        return None
    from tpudata.tokenizers import dataset_tokenizer

    try:
        tokenizer = dataset_tokenizer(dataset.path)
    # UsageError: no package that is installed here has a tokenizer of this name.
    except (DatasetError, MissingExtraError, SourceError, UsageError):
        return None
    return lambda ids: tokenizer.decode(list(ids))

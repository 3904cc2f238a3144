"""`tpudata verify DIR`: re-reads a dataset and names everything that is damaged, missing or too much."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Iterator, Sequence

from tqdm import tqdm

from beam_jobs.image_check import decoded_image_problems, image_problems
from tpudata.flags import FlagParser, positive_int
from tpudata.format import Defect, Manifest, open_dataset, verify
from tpudata.process import interruptible
from tpudata.tables import bytes_text, count_text, table

_DEFECTS = 1


def run(argv: Sequence[str]) -> int:
    """Runs the command with its flags and returns its exit code: 1 where there is any defect."""
    parser = FlagParser(
        "tpudata verify",
        "Re-reads a dataset, every byte of it, and names everything that is damaged, missing or too much.",
    )
    parser.add_argument("folder", metavar="DIR", help="the dataset's folder")
    parser.add_switch("--json", default=False, help="print one JSON object, for programs")
    parser.add_switch(
        "--decode", default=False, help="decode every encoded image, too: as slow as a conversion that does"
    )
    parser.add_argument(
        "--workers", type=positive_int, default=1, metavar="N", help="processes to use (default: %(default)s)"
    )
    flags = parser.parse(argv)
    with interruptible(lambda: None, lambda: None):
        return _report(flags.folder, flags.workers, decode=flags.decode, as_json=flags.json)


def _report(folder: str, workers: int, *, decode: bool, as_json: bool) -> int:
    defects = _defects(folder, workers, decode=decode)
    if as_json:
        found = list(defects)
        json.dump({"path": folder, "defects": [dataclasses.asdict(defect) for defect in found]}, sys.stdout, indent=1)
        print()
        return _DEFECTS if found else 0
    count = 0
    for defect in defects:
        count += 1
        # Above the bar, where there is one.
        tqdm.write(str(defect), file=sys.stdout)
    if count:
        print(f"{folder}: {count_text(count)} {'defect' if count == 1 else 'defects'}")
        return _DEFECTS
    print(_intact_text(folder, open_dataset(folder).manifest))
    return 0


def _defects(folder: str, workers: int, *, decode: bool) -> Iterator[Defect]:
    """The defects as they are found, with a bar on stderr where that is a terminal."""
    with tqdm(unit="B", unit_scale=True, desc="verifying", leave=False, disable=not sys.stderr.isatty()) as bar:

        def progress(read: int, total: int) -> None:
            bar.total = total
            bar.update(read)

        check = decoded_image_problems if decode else image_problems
        yield from verify(folder, example_check=check, workers=workers, progress=progress)


def _intact_text(folder: str, manifest: Manifest) -> str:
    rows = [["split", "records", "shards", "bytes"]]
    for name, split in manifest.splits.items():
        rows.append([name, count_text(split.records), count_text(len(split.shards)), bytes_text(split.bytes)])
    return f"{folder}: no defects\n{table(rows, right=range(1, 4))}"

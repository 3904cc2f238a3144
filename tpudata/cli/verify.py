"""`tpudata verify DIR`: re-reads a dataset and lists everything that is damaged, missing or surplus."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from tqdm import tqdm

from tpudata.console.child_processes import safe_import_path
from tpudata.console.flags import FlagParser, positive_int
from tpudata.console.signals import interruptible
from tpudata.console.tables import bytes_text, count_text, table
from tpudata.format import Defect, Manifest, open_dataset, verify
from tpudata.format.verification.damaged_records import quarantine_damage
from tpudata.format.verification.shard_check import ExampleCheck
from tpudata.images.check import find_decoded_image_problems, find_image_problems

# Exit code if there is a defect; with --quarantine, only if a defect still keeps readers from the dataset.
_DEFECTS_REMAIN = 1


def run(argv: Sequence[str]) -> int:
    """Run the command with its flags and return its exit code.

    The code is 1 if there is a defect; with `--quarantine`, only if a defect still keeps readers from the dataset.
    """
    flags = new_parser().parse(argv)
    check = find_decoded_image_problems if flags.decode else find_image_problems
    # `verify` stops its worker processes itself when an interrupt ends it, and there are no temporary files.
    with interruptible(stop=_do_nothing, tidy=_do_nothing):
        defects = _find_defects(flags.folder, flags.workers, check)
        finish = _report_json_and_quarantine if flags.json else _report_and_quarantine
        return finish(flags.folder, defects, check if flags.quarantine else None)


def _do_nothing() -> None:
    pass


def new_parser() -> FlagParser:
    """Return the parser of the command's flags."""
    parser = FlagParser(
        "tpudata verify",
        "Re-reads every byte of a dataset and lists everything that is damaged, missing or surplus.",
        topics=("dataset/verify",),
    )
    parser.add_argument("folder", metavar="DIR", help="the dataset's folder")
    parser.add_switch("--json", default=False, help="print one JSON object, for programs")
    parser.add_switch(
        "--decode", default=False, help="decode every encoded image, too: as slow as a conversion with --check=decode"
    )
    parser.add_argument(
        "--workers", type=positive_int, default=1, metavar="N", help="processes to use (default: %(default)s)"
    )
    parser.add_switch(
        "--quarantine",
        default=False,
        help="let readers skip damaged records; with --decode, also those whose images do not decode",
    )
    return parser


def _report_and_quarantine(folder: str, defects: Iterator[Defect], check: ExampleCheck | None) -> int:
    """Print the defects as lines, quarantine them if requested, and return the exit code.

    Args:
        folder: the dataset's folder.
        defects: the defects, as they are found.
        check: the check of Examples that found the defects, for the quarantine; None for no quarantine.
    """
    defect_list = []
    for defect in defects:
        defect_list.append(defect)
        # This prints above the progress bar, if there is one.
        tqdm.write(str(defect), file=sys.stdout)
    if defect_list:
        print(f"{folder}: {count_text(len(defect_list), 'defect')}{_format_kinds(defect_list)}")
    else:
        print(_format_intact(folder, open_dataset(folder).manifest))
    if check is None:
        return _DEFECTS_REMAIN if defect_list else 0
    quarantine, remaining = quarantine_damage(folder, defect_list, check)
    record_count = sum(shard.count for shard in quarantine.shards.values())
    print(
        f"{folder}: readers skip {count_text(record_count, 'record')} in {count_text(len(quarantine.shards), 'shard')}"
    )
    if remaining:
        print(f"{folder}: {count_text(len(remaining), 'defect')} cannot be put into quarantine, first {remaining[0]}")
    return _DEFECTS_REMAIN if remaining else 0


def _report_json_and_quarantine(folder: str, defects: Iterator[Defect], check: ExampleCheck | None) -> int:
    """Print the defects as one JSON object, quarantine them if requested, and return the exit code.

    Args:
        folder: the dataset's folder.
        defects: the defects, as they are found.
        check: the check of Examples that found the defects, for the quarantine; None for no quarantine.
    """
    defect_list = list(defects)
    report: dict[str, Any] = {"path": folder, "defects": [dataclasses.asdict(defect) for defect in defect_list]}
    remaining = defect_list
    if check is not None:
        quarantine, remaining = quarantine_damage(folder, defect_list, check)
        # docs/dataset/verify.md documents `last` as the number after the last record.
        report["left_out"] = {
            name: [{"first": first, "last": stop, "reason": reason} for first, stop, reason in shard.records]
            for name, shard in quarantine.shards.items()
        }
    json.dump(report, sys.stdout, indent=1)
    print()
    return _DEFECTS_REMAIN if remaining else 0


def _find_defects(folder: str, workers: int, check: ExampleCheck) -> Iterator[Defect]:
    """Yield the defects as they are found, with a progress bar if stderr is a terminal."""
    with (
        safe_import_path(),
        tqdm(unit="B", unit_scale=True, desc="verifying", leave=False, disable=not sys.stderr.isatty()) as bar,
    ):

        def show_progress(new_bytes: int, total_bytes: int) -> None:
            bar.total = total_bytes
            bar.update(new_bytes)

        yield from verify(folder, example_check=check, workers=workers, progress=show_progress)


def _format_kinds(defects: Sequence[Defect]) -> str:
    """Return the number of defects by their kind, in parentheses; empty if no defect has a kind."""
    counts = Counter(defect.kind for defect in defects if defect.kind)
    kinds = ", ".join(f"{kind} {count_text(count)}" for kind, count in sorted(counts.items()))
    return f" ({kinds})" if kinds else ""


def _format_intact(folder: str, manifest: Manifest) -> str:
    """Return the line that says that there are no defects, and a table of the splits."""
    rows = [["split", "records", "shards", "bytes"]]
    for name, split in manifest.splits.items():
        rows.append([name, count_text(split.records), count_text(len(split.shards)), bytes_text(split.bytes)])
    return f"{folder}: no defects\n{table(rows, right=range(1, 4))}"

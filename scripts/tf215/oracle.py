"""The program of scripts/oracle_tf215."""

from __future__ import annotations

import argparse
import fnmatch
import json
import math
import os
import subprocess
import sys
import tempfile
import venv
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = ROOT / "scripts" / "tf215" / "programs.py"
# Packages of each side's environment.
SIDES = {"original": ["tensorflow-cpu==2.15.1"], "ours": ["--editable", f"{ROOT}[tpu]"]}
# Side of each stage of scripts/tf215/programs.py, in their order.
STAGES = {"original": "original", "ours": "ours", "again": "original"}
# Environment variables of each side.
SETTINGS = {
    "original": {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"},
    # v1 layers need tf_keras.
    "ours": {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1", "TF_USE_LEGACY_KERAS": "1"},
}
# Tolerances: kernels of the releases sum in different orders, and the differences grow in training.
RELATIVE, ABSOLUTE = 1e-4, 1e-6


class KnownDifference(NamedTuple):
    """A difference that is intended, or cannot be avoided.

    Attributes:
        program: pattern of the names of programs.
        field: pattern of the names of fields.
        reason: the reason, which docs/reference/original_estimator.md also contains.
    """

    program: str
    field: str
    reason: str


KNOWN = (
    KnownDifference("*", "event steps/examples/sec", "examples/sec is written without a TPU, too"),
    KnownDifference(
        "first_values", "*parts/w*", "Checkpoints keep partitioned variables part by part, under the names of the parts"
    ),
    KnownDifference(
        "effects",
        "*/p",
        "Checkpoints keep partitioned variables part by part, under the names of the parts",
    ),
    KnownDifference(
        "effects",
        "*/p/part_*",
        "Checkpoints keep partitioned variables part by part, under the names of the parts",
    ),
    KnownDifference("effects", "*/MutableHashTable-*", "Tables are in no checkpoint"),
    KnownDifference("errors", "error/model_fn returns None", "A TypeError that says so; the original fell over it"),
    KnownDifference("errors", "error/model_fn without params", "model_fn need not take params"),
    *(
        KnownDifference("errors", f"error/{name}", "Arguments are checked when they are given")
        for name in (
            "a mode that is not there",
            "a tpu_config of another type",
            "an input mode that is not there",
            "evaluate steps 1.5",
            "steps 1.5",
            "steps and max_steps of a TrainSpec",
        )
    ),
)


class Row(NamedTuple):
    """Result of the comparison of one field.

    Attributes:
        program: name of the program.
        field: name of the field.
        difference: description of the difference; empty without one.
        reason: reason of a known difference, otherwise None.
    """

    program: str
    field: str
    difference: str
    reason: str | None


def find_differences(original: Any, ours: Any) -> Iterator[str]:
    """Yield descriptions of the differences between two JSON values; numbers may differ within the tolerances."""
    if isinstance(original, dict) and isinstance(ours, dict):
        for key in sorted({*original, *ours}):
            if key not in ours or key not in original:
                yield f"{key!r} only in {'the original' if key in original else 'ours'}"
            else:
                yield from (f"{key!r}: {difference}" for difference in find_differences(original[key], ours[key]))
    elif isinstance(original, list) and isinstance(ours, list):
        if len(original) != len(ours):
            yield f"{abbreviate(original)} became {abbreviate(ours)}"
            return
        for original_element, our_element in zip(original, ours, strict=True):
            yield from find_differences(original_element, our_element)
    elif is_number(original) and is_number(ours):
        are_nan = math.isnan(original) and math.isnan(ours)
        if not are_nan and not math.isclose(original, ours, rel_tol=RELATIVE, abs_tol=ABSOLUTE):
            yield f"{original!r} became {ours!r}"
    elif type(original) is not type(ours) or original != ours:
        yield f"{abbreviate(original)} became {abbreviate(ours)}"


def is_number(value: Any) -> bool:
    """Return whether a value is a number, and not a boolean."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def abbreviate(value: Any) -> str:
    """Return a value as JSON, cut to 60 characters."""
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def compare_records(
    program: str, original: dict[str, Any], ours: dict[str, Any], known: tuple[KnownDifference, ...] = KNOWN
) -> list[Row]:
    """Compare the records of a program on both sides, and return a row for each field.

    Args:
        program: name of the program.
        original: record of the original, by field.
        ours: record of ours, by field.
        known: differences with a reason; their programs and fields are patterns, and the first that matches counts.
    """
    rows = []
    for field in sorted({*original, *ours}):
        difference = describe_difference(field, original, ours)
        reasons = (
            entry.reason
            for entry in known
            if fnmatch.fnmatchcase(program, entry.program) and fnmatch.fnmatchcase(field, entry.field)
        )
        rows.append(Row(program, field, difference, next(reasons, None) if difference else None))
    return rows


def describe_difference(field: str, original: dict[str, Any], ours: dict[str, Any]) -> str:
    """Return the first difference between a field of two records, and the number of others; empty if they are equal."""
    if field not in ours or field not in original:
        return f"only in {'the original' if field in original else 'ours'}"
    # An error of ours is named by all its base classes, such as "TypeError and ValueError": one of them being the original's is
    # enough, since an `except` for that one also catches ours.
    if field.startswith("error/") and original[field] in ours[field].split(" and "):
        return ""
    first, *others = [*find_differences(original[field], ours[field])] or [""]
    return f"{first} (and {len(others)} more)" if others else first


def format_table(rows: list[Row]) -> list[str]:
    """Return the lines of a Markdown table: one for the equal fields of each kind, one for each field that differs."""
    lines = ["| program | field | result |", "|---|---|---|"]
    for program in dict.fromkeys(row.program for row in rows):
        program_rows = [row for row in rows if row.program == program]
        # The kind of a field is the part of its name before the first slash.
        equal_kinds = Counter(row.field.split("/")[0] for row in program_rows if not row.difference)
        for kind, count in equal_kinds.items():
            lines.append(f"| {program} | {kind}{f' ({count})' if count > 1 else ''} | equal |")
        for row in program_rows:
            if row.difference:
                state = "different" if row.reason else "**different, and not listed**"
                reason = f". {row.reason}" if row.reason else ""
                lines.append(f"| {program} | {row.field} | {state}: {row.difference}{reason} |")
    return lines


def make_environment(folder: Path, packages: list[str]) -> str:
    """Make a virtual environment with packages, unless it exists; return its Python."""
    python = str(folder / "bin" / "python")
    # Written last, so that an interrupted installation is repeated.
    marker = folder / "oracle-installed"
    if not marker.exists():
        print(f"installing {' '.join(packages)}", file=sys.stderr)
        venv.create(folder, with_pip=True, clear=True)
        install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*install, *packages], check=True)
        marker.touch()
    return python


def main() -> int:
    """Run the programs with the original and with ours, and print a table; return 1 if they differ in an unlisted way."""
    parser = argparse.ArgumentParser(prog="scripts/oracle_tf215", description=main.__doc__)
    parser.add_argument("programs", nargs="*", metavar="PROGRAM", help="some of the programs (default: all)")
    parser.add_argument("--venvs", help="keep the virtual environments in this folder, and use existing ones")
    flags = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tpudata-oracle-") as temporary:
        venvs = Path(flags.venvs or f"{temporary}/venvs").resolve()
        pythons = {side: make_environment(venvs / side, packages) for side, packages in SIDES.items()}
        for stage, side in STAGES.items():
            # Shown only if the stage fails, since TensorFlow writes many warnings.
            log = Path(temporary, f"{stage}.log")
            with log.open("w") as file:
                command = [pythons[side], str(PROGRAMS), stage, temporary, *flags.programs]
                process = subprocess.run(command, stderr=file, env={**os.environ, **SETTINGS[side]})
            if process.returncode:
                print(log.read_text(), file=sys.stderr)
                return 1
        rows = []
        # In the order of the programs.
        for path in sorted(Path(temporary, "ours").glob("*.json"), key=lambda path: path.stat().st_mtime):
            original, ours = (json.loads(Path(temporary, side, path.name).read_text()) for side in SIDES)
            rows += compare_records(path.stem, original, ours)
    print("\n".join(format_table(rows)))
    unlisted = [row for row in rows if row.difference and row.reason is None]
    different = [row for row in rows if row.difference]
    print(
        f"\n{len(rows)} fields: {len(rows) - len(different)} equal, {len(different)} different, {len(unlisted)} of them not listed"
    )
    return int(bool(unlisted))


if __name__ == "__main__":
    sys.exit(main())

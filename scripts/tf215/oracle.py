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
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = ROOT / "scripts" / "tf215" / "programs.py"
SIDES = {"original": ["tensorflow-cpu==2.15.1"], "ours": ["--editable", f"{ROOT}[tpu]"]}
# Side of each stage of scripts/tf215/programs.py.
STAGES = {"original": "original", "ours": "ours", "again": "original"}
SETTINGS = {
    "original": {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"},
    # v1 layers come from tf_keras today, and came from TensorFlow's own Keras.
    "ours": {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1", "TF_USE_LEGACY_KERAS": "1"},
}
# Kernels differ between the releases in the order of their sums, and training adds that up.
RELATIVE, ABSOLUTE = 1e-4, 1e-6


class Known(NamedTuple):
    """A difference that is intended, or cannot be avoided.

    Attributes:
        program: pattern of the names of programs.
        field: pattern of the names of fields.
        reason: the reason, which docs/reference/original_estimator.md contains, too.
    """

    program: str
    field: str
    reason: str


KNOWN = (
    Known("*", "event steps/examples/sec", "examples/sec is written without a TPU, too"),
    Known(
        "first_values", "*parts/w*", "Checkpoints keep partitioned variables part by part, under the names of the parts"
    ),
    Known(
        "effects",
        "*/p",
        "Checkpoints keep partitioned variables part by part, under the names of the parts",
    ),
    Known(
        "effects",
        "*/p/part_*",
        "Checkpoints keep partitioned variables part by part, under the names of the parts",
    ),
    Known("effects", "*/MutableHashTable-*", "Tables are in no checkpoint"),
    Known("errors", "error/model_fn returns None", "A TypeError that says so; the original fell over it"),
    Known("errors", "error/model_fn without params", "model_fn need not take params"),
    *(
        Known("errors", f"error/{name}", "Arguments are checked when they are given")
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
    """Result of one field; `difference` is empty if it is equal."""

    program: str
    field: str
    difference: str
    reason: str | None


def differences(original: Any, ours: Any) -> Iterator[str]:
    """Yield the differences of two JSON values; numbers may differ within the tolerance."""
    if isinstance(original, dict) and isinstance(ours, dict):
        for key in sorted({*original, *ours}):
            if key not in ours or key not in original:
                yield f"{key!r} only in {'the original' if key in original else 'ours'}"
            else:
                yield from (f"{key!r}: {item}" for item in differences(original[key], ours[key]))
    elif isinstance(original, list) and isinstance(ours, list):
        if len(original) != len(ours):
            yield f"{short(original)} became {short(ours)}"
            return
        for one, other in zip(original, ours, strict=True):
            yield from differences(one, other)
    elif is_number(original) and is_number(ours):
        both_nan = math.isnan(original) and math.isnan(ours)
        if not both_nan and not math.isclose(original, ours, rel_tol=RELATIVE, abs_tol=ABSOLUTE):
            yield f"{original!r} became {ours!r}"
    elif type(original) is not type(ours) or original != ours:
        yield f"{short(original)} became {short(ours)}"


def is_number(value: Any) -> bool:
    """Return whether a value is a number, and not a boolean."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def short(value: Any) -> str:
    """Format a value for one line of a table."""
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def compare(
    program: str, original: dict[str, Any], ours: dict[str, Any], known: tuple[Known, ...] = KNOWN
) -> list[Row]:
    """Compare two records of a program, field by field."""
    rows = []
    for field in sorted({*original, *ours}):
        if field not in ours or field not in original:
            difference = f"only in {'the original' if field in original else 'ours'}"
        else:
            found = list(differences(original[field], ours[field]))
            if field.startswith("error/") and original[field] in ours[field].split(" and "):
                found = []  # Programs that catch the original's catch ours.
            difference = found[0] + (f" (and {len(found) - 1} more)" if len(found) > 1 else "") if found else ""
        reasons = (
            item.reason
            for item in known
            if fnmatch.fnmatchcase(program, item.program) and fnmatch.fnmatchcase(field, item.field)
        )
        rows.append(Row(program, field, difference, next(reasons, None) if difference else None))
    return rows


def table(rows: list[Row]) -> list[str]:
    """Return the lines of a Markdown table: one for the equal fields of each kind, one for each field that differs."""
    lines = ["| program | field | result |", "|---|---|---|"]
    for program in dict.fromkeys(row.program for row in rows):
        own = [row for row in rows if row.program == program]
        kinds: dict[str, int] = {}
        for row in own:
            if not row.difference:
                kind = row.field.split("/")[0]
                kinds[kind] = kinds.get(kind, 0) + 1
        for kind, count in kinds.items():
            lines.append(f"| {program} | {kind}{f' ({count})' if count > 1 else ''} | equal |")
        for row in own:
            if row.difference:
                what = "different" if row.reason else "**different, and not listed**"
                why = f". {row.reason}" if row.reason else ""
                lines.append(f"| {program} | {row.field} | {what}: {row.difference}{why} |")
    return lines


def environment(folder: Path, packages: list[str]) -> str:
    """Return the Python of a virtual environment, which is made if it is missing."""
    python = str(folder / "bin" / "python")
    done = folder / "oracle-installed"
    if not done.exists():
        print(f"installing {' '.join(packages)}", file=sys.stderr)
        venv.create(folder, with_pip=True, clear=True)
        install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*install, *packages], check=True)
        done.touch()
    return python


def main() -> int:
    """Run the programs with the original and with ours, and print a table; return 1 if they differ in an unlisted way."""
    parser = argparse.ArgumentParser(prog="scripts/oracle_tf215", description=main.__doc__)
    parser.add_argument("programs", nargs="*", metavar="PROGRAM", help="some of the programs (default: all)")
    parser.add_argument("--venvs", help="keep the virtual environments in this folder, and use existing ones")
    flags = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tpudata-oracle-") as temporary:
        venvs = Path(flags.venvs or f"{temporary}/venvs").resolve()
        pythons = {side: environment(venvs / side, packages) for side, packages in SIDES.items()}
        for stage, side in STAGES.items():
            # TensorFlow's deprecation warnings are not compared.
            log = Path(temporary, f"{stage}.log")
            with log.open("w") as file:
                command = [pythons[side], str(PROGRAMS), stage, temporary, *flags.programs]
                done = subprocess.run(command, stderr=file, env={**os.environ, **SETTINGS[side]})
            if done.returncode:
                print(log.read_text(), file=sys.stderr)
                return 1
        rows = []
        for path in sorted(Path(temporary, "ours").glob("*.json"), key=lambda path: path.stat().st_mtime):
            records = [json.loads(Path(temporary, side, path.name).read_text()) for side in SIDES]
            rows += compare(path.stem, *records)
    print("\n".join(table(rows)))
    unlisted = [row for row in rows if row.difference and row.reason is None]
    different = [row for row in rows if row.difference]
    print(
        f"\n{len(rows)} fields: {len(rows) - len(different)} equal, {len(different)} different, {len(unlisted)} of them not listed"
    )
    return int(bool(unlisted))


if __name__ == "__main__":
    sys.exit(main())

"""The program of scripts/conformance."""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import subprocess
import sys
import tempfile
import venv
from collections.abc import Iterable
from pathlib import Path
from typing import Any

Record = dict[str, Any]
ROOT = Path(__file__).resolve().parent.parent
READERS = ROOT / "scripts" / "_conformance_readers.py"
IMAGE = "image/encoded"
KINDS = ("images", "text", "text_gzip", "tokens", "packed", "packed_int64")
# Feature that identifies a record, by kind of dataset.
KEYS = {"images": IMAGE, "text": "n", "text_gzip": "n", "tokens": "n", "packed": "text", "packed_int64": "text"}
# Below the folder of a kind: TFDS looks for NAME/VERSION.
VERSION = "1.0.0"
_ROWS = ["--form", "jsonl", "--field", "text", "--field", "n:int"]
_PACKED = ["--form", "jsonl", "--tokenizer", "bytes", "--sequence-length", "64", "--pack"]
_SHARDS = ["--num-shards=3", "--dali-index"]
# By kind of dataset: the module that makes it, and its flags.
CONVERSIONS = {
    "images": ("images", ["--shard-size=20kB", "--dali-index"]),
    "text": ("text", [*_ROWS, *_SHARDS]),
    "text_gzip": ("text", [*_ROWS, "--num-shards=3", "--compression=gzip"]),
    "tokens": ("text", [*_ROWS, "--tokenizer=bytes", *_SHARDS]),
    "packed": ("text", [*_PACKED, *_SHARDS]),
    "packed_int64": ("text", [*_PACKED, "--int64-lists", *_SHARDS]),
}

# By reader: the package whose version is shown, and the packages of the reader's environment.
ENVIRONMENTS = {
    "tf_data": ("tensorflow", ["tensorflow>=2.20,<2.22"]),
    "tfds": ("tensorflow-datasets", ["tensorflow-datasets", "tensorflow>=2.20,<2.22"]),
    "beam": ("apache-beam", ["apache-beam", "google-crc32c", "tensorflow>=2.20,<2.22"]),
    "grain": ("grain", ["grain", "tensorflow>=2.20,<2.22"]),
    "tfrecord": ("tfrecord", ["tfrecord"]),
    # The limit is missing in SeqIO's requirements.
    "seqio": ("seqio", ["seqio", "sentencepiece<0.2.1"]),
    "seqio_tfds": ("seqio", ["seqio", "sentencepiece<0.2.1"]),
    "dali": ("nvidia-dali-cuda120", ["nvidia-dali-cuda120"]),
    "tf_models": ("tf-models-official", ["tf-models-official", "tensorflow==2.20.*"]),
}
# Readers that use the environment of another one.
SHARED = {"seqio_tfds": "seqio"}
# Readers that only read some kinds.
_PLAIN = tuple(kind for kind in KINDS if kind != "text_gzip")
KNOWS = {**dict.fromkeys(("tfds", "grain", "seqio", "seqio_tfds", "dali"), _PLAIN), "tf_models": ("images",)}
# Pictures, or documents.
INPUTS = 60


def main() -> int:
    """Convert generated pictures and text, read them with every reader and print a table; return 1 if any record differs."""
    parser = argparse.ArgumentParser(prog="scripts/conformance", description=main.__doc__)
    parser.add_argument(
        "readers", nargs="*", metavar="READER", help=f"some of {', '.join(ENVIRONMENTS)} (default: all)"
    )
    parser.add_argument("--venvs", help="keep the virtual environments in this folder, and use existing ones")
    flags = parser.parse_args()
    unknown = sorted({*flags.readers} - {*ENVIRONMENTS})
    if unknown:
        parser.error(f"unknown reader {unknown[0]!r}; known: {', '.join(ENVIRONMENTS)}")
    with tempfile.TemporaryDirectory(prefix="tpudata-conformance-") as temporary:
        venvs = Path(flags.venvs or f"{temporary}/venvs").resolve()
        writer = environment(venvs / "tpudata", ["--editable", str(ROOT)])
        pictures, rows = Path(temporary, "pictures"), Path(temporary, "rows.jsonl")
        subprocess.run([writer, __file__, "--draw", str(pictures)], check=True)
        draw_rows(rows)
        for kind in KINDS:
            module, options = CONVERSIONS[kind]
            source, output = (pictures if kind == "images" else rows), f"{temporary}/{kind}/{VERSION}"
            command = [writer, "-m", f"beam_jobs.{module}", "--input", str(source), "--output", output, *options]
            subprocess.run(command, check=True, cwd=ROOT, stdout=subprocess.DEVNULL)
            subprocess.run([writer, "-m", "tpudata", "verify", output], check=True, cwd=ROOT)
        due = {kind: expected(kind, pictures.with_suffix(".jsonl") if kind == "images" else rows) for kind in KINDS}
        found = [compare(name, venvs, temporary, due) for name in flags.readers or ENVIRONMENTS]
    print(f"\n| reader | package | version | {' | '.join(KINDS)} |\n|{'---|' * (3 + len(KINDS))}")
    for row in found:
        print("| " + " | ".join(row) + " |")
    return int(any(cell.startswith("no") for row in found for cell in row[3:]))


def environment(folder: Path, packages: list[str]) -> str:
    """Return the Python of a virtual environment, which is made if it is missing."""
    python = str(folder / "bin" / "python")
    done = folder / "conformance-installed"
    if not done.exists():
        print(f"installing {' '.join(packages)}", file=sys.stderr)
        venv.create(folder, with_pip=True, clear=True)
        subprocess.run(
            [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *packages], check=True
        )
        done.touch()
    return python


def compare(name: str, venvs: Path, datasets: str, due: dict[str, dict[object, Record]]) -> tuple[str, ...]:
    """Return the row of one reader: its version, and for each kind of dataset its count of records if all are as expected."""
    package, packages = ENVIRONMENTS[name]
    python = environment(venvs / SHARED.get(name, name), packages)
    version = f"import importlib.metadata as m; print(m.version({package!r}))"
    shown = subprocess.run([python, "-c", version], check=True, capture_output=True, text=True).stdout.strip()
    cells = []
    for kind in KINDS:
        if kind not in KNOWS.get(name, KINDS):
            cells.append("-")
            continue
        command = [python, str(READERS), name, f"{datasets}/{kind}/{VERSION}", kind]
        read = subprocess.run(command, capture_output=True, text=True)
        if read.returncode:
            print(f"{name}, {kind}:\n{read.stderr}", file=sys.stderr)
            cells.append(f"no: failed with exit code {read.returncode}")
            continue
        records = as_drawn(kind, map(json.loads, read.stdout.splitlines()))
        different = differences(records, due[kind], KEYS[kind])
        for difference in different:
            print(f"{name}, {kind}: {difference}", file=sys.stderr)
        cells.append("no" if different else str(len(records)))
    return name, package, shown, *cells


def expected(kind: str, drawn: Path) -> dict[object, Record]:
    """Return the expected records of a kind of dataset by key, from the generated file of JSON objects."""
    rows = list(map(json.loads, drawn.read_text().splitlines()))
    if kind == "tokens":
        rows = [{"n": row["n"], "input_ids": list(row["text"].encode())} for row in rows]
    elif kind.startswith("packed"):
        rows = [{"text": row["text"]} for row in rows]
    return {row[KEYS[kind]]: row for row in rows}


def as_drawn(kind: str, records: Iterable[Record]) -> list[Record]:
    """Return records as they were generated: the documents, if these were packed into rows."""
    if not kind.startswith("packed"):
        return list(records)
    return [{"text": text} for record in records for text in documents(record)]


def documents(record: Record) -> list[str]:
    """Return the documents of a packed row of bytes; raise ValueError if its three lists disagree."""
    found: list[list[int]] = []
    last = 0
    for token, segment, position in zip(record["input_ids"], record["segment_ids"], record["positions"], strict=True):
        if segment == 0:
            if (token, position) != (257, 0):
                raise ValueError(f"padding is {token} at {position}")
            last = -1
            continue
        if segment == last + 1:
            found.append([])
        elif segment != last:
            raise ValueError(f"segment {segment} after {last}")
        if position != len(found[-1]):
            raise ValueError(f"position {position} of a token that is number {len(found[-1])}")
        found[-1].append(token)
        last = segment
    if any(ids[-1] != 256 for ids in found):
        raise ValueError("a document without its end")
    return [bytes(ids[:-1]).decode() for ids in found]


def differences(records: list[Record], expected: dict[object, Record], key: str = IMAGE) -> list[str]:
    """Return a description of the differences; a reader may only support some features, but always `key`."""
    out = [f"unknown {key} {record[key]!r}" for record in records if record[key] not in expected]
    for value, due in expected.items():
        name = due.get("image/filename", repr(value))
        found = [record for record in records if record[key] == value]
        if len(found) != 1:
            out.append(f"{name} comes {len(found)} times")
        out += [
            f"{name}: {feature} is {given!r}, not {due[feature]!r}"
            for record in found
            for feature, given in record.items()
            if given != due[feature]
        ]
    return out


def draw_rows(path: Path) -> None:
    """Draws documents with numbers, a JSON object a line: of ASCII and not, none twice."""
    dice = random.Random(0)
    words = ("speak", "grüne Ente", "日本", "😀", "line\nbreak", '"quoted"', "a\tb")
    rows = [
        {"n": number * 2**40, "text": f"{number}: {' '.join(dice.choices(words, k=dice.randrange(4)))}"}
        for number in range(INPUTS)
    ]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))


def draw(folder: Path) -> None:
    """Draws pictures, and writes what each is into FOLDER.jsonl. Runs where Pillow is installed."""
    from PIL import Image

    dice, lines = random.Random(0), []
    classes = ("cat", "dog", "eel", "grüne Ente")
    for number in range(INPUTS):
        label, mode, name = number % 4, ("RGB", "L")[number % 5 == 0], ("JPEG", "PNG")[number % 3 == 0]
        path = folder / classes[label] / f"{number:03d}.{name.lower()}"
        path.parent.mkdir(parents=True, exist_ok=True)
        width, height = dice.randint(1, 64), dice.randint(1, 64)
        channels = len(mode) if mode == "RGB" else 1
        Image.frombytes(mode, (width, height), dice.randbytes(width * height * channels)).save(path, name)
        record = {
            IMAGE: hashlib.sha256(path.read_bytes()).hexdigest(),
            "image/format": name,
            "image/colorspace": "RGB" if channels == 3 else "grayscale",
            "image/class/text": classes[label],
            "image/filename": f"{classes[label]}/{path.name}",
            "image/height": height,
            "image/width": width,
            "image/channels": channels,
            "image/class/label": label,
        }
        lines.append(json.dumps(record) + "\n")
    # Next to the folder: everything inside is input.
    folder.with_suffix(".jsonl").write_text("".join(lines))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--draw"]:
        draw(Path(sys.argv[2]))
    else:
        sys.exit(main())

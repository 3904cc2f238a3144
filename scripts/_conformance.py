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
# Feature that identifies a record, by kind of dataset.
KEYS = {
    "images": IMAGE,
    "boxes": "image/source_id",
    "text": "n",
    "text_gzip": "n",
    "labels": "n",
    "tokens": "n",
    "packed": "text",
    "packed_int64": "text",
}
KINDS = tuple(KEYS)
_PICTURES = ("images", "boxes")
# Names of the classes of boxes, and of documents.
CLASSES = ("car", "cat", "brush")
# Below the folder of a kind: TFDS looks for NAME/VERSION.
VERSION = "1.0.0"
_ROWS = ["--form", "jsonl", "--field", "text", "--field", "n:int"]
_PACKED = ["--form", "jsonl", "--tokenizer", "bytes", "--sequence-length", "64", "--pack"]
_SHARDS = ["--num-shards=3", "--dali-index"]
# By kind of dataset: the module that makes it, and its flags.
CONVERSIONS = {
    "images": ("images", ["--shard-size=20kB", "--dali-index"]),
    "boxes": ("images", ["--unannotated=empty", *_SHARDS]),
    "text": ("text", [*_ROWS, *_SHARDS]),
    "text_gzip": ("text", [*_ROWS, "--num-shards=3", "--compression=gzip"]),
    "labels": ("text", [*_ROWS, "--label-field=label", *_SHARDS]),
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
KNOWS = {**dict.fromkeys(("tfds", "grain", "seqio", "seqio_tfds", "dali"), _PLAIN), "tf_models": _PICTURES}
# Pictures, or documents.
INPUTS = 60
# The lists of the objects of a picture, below `image/object/`.
OBJECT_PARTS = ("bbox/ymin", "bbox/ymax", "bbox/xmin", "bbox/xmax", "area", "class/label", "class/text", "is_crowd")


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
            module, options = conversion(kind, pictures)
            source, output = (pictures if kind in _PICTURES else rows), f"{temporary}/{kind}/{VERSION}"
            command = [writer, "-m", f"beam_jobs.{module}", "--input", str(source), "--output", output, *options]
            subprocess.run(command, check=True, cwd=ROOT, stdout=subprocess.DEVNULL)
            subprocess.run([writer, "-m", "tpudata", "verify", output], check=True, cwd=ROOT)
        due = {kind: expected(kind, pictures.parent) for kind in KINDS}
        found = [compare(name, venvs, temporary, due) for name in flags.readers or ENVIRONMENTS]
    print(f"\n| reader | package | version | {' | '.join(KINDS)} |\n|{'---|' * (3 + len(KINDS))}")
    for row in found:
        print("| " + " | ".join(row) + " |")
    return int(any(cell.startswith("no") for row in found for cell in row[3:]))


def conversion(kind: str, pictures: Path) -> tuple[str, list[str]]:
    """Return the module that makes a kind of dataset, and its flags."""
    module, options = CONVERSIONS[kind]
    return module, [f"--annotations={pictures.with_name('boxes.json')}", *options] if kind == "boxes" else options


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
    """Return the expected records of a kind of dataset by key, from the folder of what was generated."""
    name = {"images": "pictures.jsonl", "boxes": "boxes.jsonl"}.get(kind, "rows.jsonl")
    rows = list(map(json.loads, (drawn / name).read_text().splitlines()))
    if kind == "labels":
        rows = [{**row, "label": sorted(CLASSES).index(row["label"])} for row in rows]
    elif kind == "tokens":
        rows = [{"n": row["n"], "input_ids": list(row["text"].encode())} for row in rows]
    elif kind.startswith("packed"):
        rows = [{"text": row["text"]} for row in rows]
    elif kind not in _PICTURES:
        rows = [{"n": row["n"], "text": row["text"]} for row in rows]
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
    """Draws documents with numbers and classes, a JSON object a line: of ASCII and not, none twice."""
    dice = random.Random(0)
    words = ("speak", "grüne Ente", "日本", "😀", "line\nbreak", '"quoted"', "a\tb")
    rows = [
        {
            "n": number * 2**40,
            "text": f"{number}: {' '.join(dice.choices(words, k=dice.randrange(4)))}",
            "label": CLASSES[number % 3],
        }
        for number in range(INPUTS)
    ]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))


def draw(folder: Path) -> None:
    """Draws pictures, and boxes on them in COCO's form, and writes what each is into files next to the folder.

    Runs where Pillow is installed.
    """
    from PIL import Image

    dice, lines = random.Random(0), []
    boxes = Boxes()
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
        boxes.draw(number, record)
    # Next to the folder: everything inside is input.
    folder.with_suffix(".jsonl").write_text("".join(lines))
    boxes.write(folder.parent)


class Boxes:
    """Boxes on pictures, none on some: as annotations in COCO's form, and as the records that are expected of them."""

    def __init__(self) -> None:
        self._dice = random.Random(1)
        self._coco: dict[str, list[Record]] = {
            "images": [],
            "annotations": [],
            "categories": [{"id": 3 * number + 1, "name": name} for number, name in enumerate(CLASSES)],
        }
        self._lines: list[str] = []

    def draw(self, number: int, picture: Record) -> None:
        """Draw the boxes of a picture.

        Args:
            number: number of the picture.
            picture: its record without boxes.
        """
        height, width = picture["image/height"], picture["image/width"]
        name = picture["image/filename"]
        self._coco["images"].append({"id": number, "file_name": name, "height": height, "width": width})
        kept = (IMAGE, "image/filename", "image/format", "image/height", "image/width")
        lists: dict[str, list[Any]] = {f"image/object/{part}": [] for part in OBJECT_PARTS}
        for _ in range(number % 4):
            x, y = self._dice.uniform(0, width / 2), self._dice.uniform(0, height / 2)
            w, h = self._dice.uniform(0.1, width / 2), self._dice.uniform(0.1, height / 2)
            label, is_crowd = self._dice.randrange(len(CLASSES)), int(self._dice.random() < 0.3)
            box = {"image_id": number, "category_id": 3 * label + 1, "bbox": [x, y, w, h], "area": w * h / 2}
            rows = self._coco["annotations"]
            rows.append({"id": len(rows) + 1, "iscrowd": is_crowd, "segmentation": [], **box})
            edges = y / height, (y + h) / height, x / width, (x + w) / width
            for part, value in zip(OBJECT_PARTS, (*edges, w * h / 2, label, CLASSES[label], is_crowd), strict=True):
                lists[f"image/object/{part}"].append(float_of(value) if isinstance(value, float) else value)
        record = {"image/source_id": str(number), **{key: picture[key] for key in kept}, **lists}
        self._lines.append(json.dumps(record) + "\n")

    def write(self, folder: Path) -> None:
        """Write `boxes.json`, the annotations, and `boxes.jsonl`, the records."""
        (folder / "boxes.json").write_text(json.dumps(self._coco))
        (folder / "boxes.jsonl").write_text("".join(self._lines))


def float_of(value: float) -> float:
    """Return the first five digits of a number, which float32 has."""
    return float(f"{value:.5g}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--draw"]:
        draw(Path(sys.argv[2]))
    else:
        sys.exit(main())

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
# Kinds of datasets of pictures; the others are of text.
_PICTURE_KINDS = ("images", "boxes")
# Classes of boxes and of documents.
CLASSES = ("car", "cat", "brush")
# Folder of a dataset below that of its kind: TFDS looks for NAME/VERSION.
VERSION = "1.0.0"
# Flags of several conversions.
_ROWS = ["--form", "jsonl", "--field", "text", "--field", "n:int"]
_PACKED = ["--form", "jsonl", "--tokenizer", "bytes", "--sequence-length", "64", "--pack"]
_SHARDS = ["--num-shards=3", "--dali-index"]
# The module that converts to each kind of dataset, and its flags.
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

# For each reader, the package whose version is shown, and the packages of the environment in which it runs.
ENVIRONMENTS = {
    "tf_data": ("tensorflow", ["tensorflow>=2.20,<2.22"]),
    "tfds": ("tensorflow-datasets", ["tensorflow-datasets", "tensorflow>=2.20,<2.22"]),
    "beam": ("apache-beam", ["apache-beam", "google-crc32c", "tensorflow>=2.20,<2.22"]),
    "grain": ("grain", ["grain", "tensorflow>=2.20,<2.22"]),
    "tfrecord": ("tfrecord", ["tfrecord"]),
    # SeqIO needs this limit, which its requirements lack.
    "seqio": ("seqio", ["seqio", "sentencepiece<0.2.1"]),
    "seqio_tfds": ("seqio", ["seqio", "sentencepiece<0.2.1"]),
    "dali": ("nvidia-dali-cuda120", ["nvidia-dali-cuda120"]),
    "tf_models": ("tf-models-official", ["tf-models-official", "tensorflow==2.20.*"]),
}
# Readers that use the environment of another one.
SHARED_ENVIRONMENTS = {"seqio_tfds": "seqio"}
# Kinds that readers support, if these are not all.
_UNCOMPRESSED_KINDS = tuple(kind for kind in KINDS if kind != "text_gzip")
SUPPORTED_KINDS = {
    **dict.fromkeys(("tfds", "grain", "seqio", "seqio_tfds", "dali"), _UNCOMPRESSED_KINDS),
    "tf_models": _PICTURE_KINDS,
}
# Number of pictures, and of documents.
INPUT_COUNT = 60
# Features of the objects of a picture, below `image/object/`.
OBJECT_PARTS = ("bbox/ymin", "bbox/ymax", "bbox/xmin", "bbox/xmax", "area", "class/label", "class/text", "is_crowd")


def main() -> int:
    """Convert generated pictures and text, read them with readers, print a table; return 1 if records differ or a reader fails."""
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
        writer = make_environment(venvs / "tpudata", ["--editable", str(ROOT)])
        pictures, rows = Path(temporary, "pictures"), Path(temporary, "rows.jsonl")
        # In the environment of tpudata, which has Pillow: `draw_pictures`.
        subprocess.run([writer, __file__, "--draw", str(pictures)], check=True)
        write_rows(rows)
        for kind in KINDS:
            module, options = find_conversion(kind, pictures)
            source, output = (pictures if kind in _PICTURE_KINDS else rows), f"{temporary}/{kind}/{VERSION}"
            command = [writer, "-m", f"beam_jobs.{module}", "--input", str(source), "--output", output, *options]
            subprocess.run(command, check=True, cwd=ROOT, stdout=subprocess.DEVNULL)
            subprocess.run([writer, "-m", "tpudata", "verify", output], check=True, cwd=ROOT)
        expected = {kind: read_expected_records(kind, pictures.parent) for kind in KINDS}
        table = [compare_reader(name, venvs, temporary, expected) for name in flags.readers or ENVIRONMENTS]
    print(f"\n| reader | package | version | {' | '.join(KINDS)} |\n|{'---|' * (3 + len(KINDS))}")
    for row in table:
        print("| " + " | ".join(row) + " |")
    return int(any(cell.startswith("no") for _, _, _, *cells in table for cell in cells))


def find_conversion(kind: str, pictures: Path) -> tuple[str, list[str]]:
    """Return the module that converts to a kind of dataset, and its flags.

    Args:
        kind: the kind.
        pictures: folder of the pictures, next to which their annotations are.
    """
    module, options = CONVERSIONS[kind]
    return module, [f"--annotations={pictures.with_name('boxes.json')}", *options] if kind == "boxes" else options


def make_environment(folder: Path, packages: list[str]) -> str:
    """Make a virtual environment with packages, unless it exists; return its Python."""
    python = str(folder / "bin" / "python")
    # Written last, so that an interrupted installation is repeated.
    marker = folder / "conformance-installed"
    if not marker.exists():
        print(f"installing {' '.join(packages)}", file=sys.stderr)
        venv.create(folder, with_pip=True, clear=True)
        subprocess.run(
            [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *packages], check=True
        )
        marker.touch()
    return python


def compare_reader(name: str, venvs: Path, datasets: str, expected: dict[str, dict[object, Record]]) -> tuple[str, ...]:
    """Read all datasets with one reader, and return its row of the table.

    Args:
        name: name of the reader.
        venvs: folder of the virtual environments.
        datasets: folder of the datasets.
        expected: the records of each kind of dataset, by key.

    Returns:
        The reader, its package and version, and for each kind of dataset the number of records, `no` if they differ from the
        expected ones, `no: ...` if the reader failed, or `-` if it does not support the kind.
    """
    package, packages = ENVIRONMENTS[name]
    python = make_environment(venvs / SHARED_ENVIRONMENTS.get(name, name), packages)
    program = f"import importlib.metadata as m; print(m.version({package!r}))"
    version = subprocess.run([python, "-c", program], check=True, capture_output=True, text=True).stdout.strip()
    cells = []
    for kind in KINDS:
        if kind not in SUPPORTED_KINDS.get(name, KINDS):
            cells.append("-")
            continue
        command = [python, str(READERS), name, f"{datasets}/{kind}/{VERSION}", kind]
        process = subprocess.run(command, capture_output=True, text=True)
        if process.returncode:
            print(f"{name}, {kind}:\n{process.stderr}", file=sys.stderr)
            cells.append(f"no: failed with exit code {process.returncode}")
            continue
        records = unpack_records(kind, map(json.loads, process.stdout.splitlines()))
        differences = find_differences(records, expected[kind], KEYS[kind])
        for difference in differences:
            print(f"{name}, {kind}: {difference}", file=sys.stderr)
        cells.append("no" if differences else str(len(records)))
    return name, package, version, *cells


def read_expected_records(kind: str, folder: Path) -> dict[object, Record]:
    """Return the expected records of a kind of dataset by key.

    Args:
        kind: the kind.
        folder: folder of the files that describe the inputs.
    """
    name = {"images": "pictures.jsonl", "boxes": "boxes.jsonl"}.get(kind, "rows.jsonl")
    rows = list(map(json.loads, (folder / name).read_text().splitlines()))
    # Labels are in the order of the sorted class names, and tokens are bytes.
    if kind == "labels":
        rows = [{**row, "label": sorted(CLASSES).index(row["label"])} for row in rows]
    elif kind == "tokens":
        rows = [{"n": row["n"], "input_ids": list(row["text"].encode())} for row in rows]
    elif kind.startswith("packed"):
        rows = [{"text": row["text"]} for row in rows]
    elif kind not in _PICTURE_KINDS:
        rows = [{"n": row["n"], "text": row["text"]} for row in rows]
    return {row[KEYS[kind]]: row for row in rows}


def unpack_records(kind: str, records: Iterable[Record]) -> list[Record]:
    """Return records with one document each, even if the kind of dataset packs documents into rows."""
    if not kind.startswith("packed"):
        return list(records)
    return [{"text": text} for record in records for text in unpack_documents(record)]


def unpack_documents(record: Record) -> list[str]:
    """Return the documents of a packed row of bytes; ValueError if its three lists disagree.

    Segments count from 1, and positions in each from 0; both are 0 for padding, whose id is 257. A document ends with id 256.
    """
    documents: list[list[int]] = []
    last_segment = 0
    for token, segment, position in zip(record["input_ids"], record["segment_ids"], record["positions"], strict=True):
        if segment == 0:
            if (token, position) != (257, 0):
                raise ValueError(f"padding is {token} at {position}")
            # No segment may follow.
            last_segment = -1
            continue
        if segment == last_segment + 1:
            documents.append([])
        elif segment != last_segment:
            raise ValueError(f"segment {segment} after {last_segment}")
        if position != len(documents[-1]):
            raise ValueError(f"position {position} of a token that is number {len(documents[-1])}")
        documents[-1].append(token)
        last_segment = segment
    if any(ids[-1] != 256 for ids in documents):
        raise ValueError("a document without its end")
    return [bytes(ids[:-1]).decode() for ids in documents]


def find_differences(records: list[Record], expected: dict[object, Record], key: str = IMAGE) -> list[str]:
    """Return a line for each difference between records and the expected ones.

    Args:
        records: records as a reader returned them, which may lack features, but not `key`.
        expected: the expected records, by the values of `key`.
        key: feature that identifies a record.
    """
    lines = [f"unknown {key} {record[key]!r}" for record in records if record[key] not in expected]
    for value, expected_record in expected.items():
        name = expected_record.get("image/filename", repr(value))
        matches = [record for record in records if record[key] == value]
        if len(matches) != 1:
            lines.append(f"{name} comes {len(matches)} times")
        lines += [
            f"{name}: {feature} is {read!r}, not {expected_record[feature]!r}"
            for record in matches
            for feature, read in record.items()
            if read != expected_record[feature]
        ]
    return lines


def write_rows(path: Path) -> None:
    """Write random documents with numbers and classes, a JSON object a line; no two are equal, and some are not ASCII."""
    dice = random.Random(0)
    words = ("speak", "grüne Ente", "日本", "😀", "line\nbreak", '"quoted"', "a\tb")
    rows = [
        {
            "n": number * 2**40,
            "text": f"{number}: {' '.join(dice.choices(words, k=dice.randrange(4)))}",
            "label": CLASSES[number % 3],
        }
        for number in range(INPUT_COUNT)
    ]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))


def draw_pictures(folder: Path) -> None:
    """Draw pictures with random pixels, and random boxes on them in COCO's form; write the expected records next to the folder.

    This needs Pillow, and so runs in the environment of tpudata.
    """
    from PIL import Image

    dice, lines = random.Random(0), []
    boxes = Boxes()
    classes = ("cat", "dog", "eel", "grüne Ente")
    for number in range(INPUT_COUNT):
        label = number % 4
        mode = "L" if number % 5 == 0 else "RGB"
        file_format = "PNG" if number % 3 == 0 else "JPEG"
        path = folder / classes[label] / f"{number:03d}.{file_format.lower()}"
        path.parent.mkdir(parents=True, exist_ok=True)
        width, height, channels = dice.randint(1, 64), dice.randint(1, 64), len(mode)
        Image.frombytes(mode, (width, height), dice.randbytes(width * height * channels)).save(path, file_format)
        record = {
            IMAGE: hashlib.sha256(path.read_bytes()).hexdigest(),
            "image/format": file_format,
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
    # Next to the folder, since all files inside are input.
    folder.with_suffix(".jsonl").write_text("".join(lines))
    boxes.write(folder.parent)


class Boxes:
    """Boxes on pictures, none on some: as annotations in COCO's form, and as expected records."""

    def __init__(self) -> None:
        self._dice = random.Random(1)
        self._coco: dict[str, list[Record]] = {
            "images": [],
            "annotations": [],
            # Ids that are not the labels.
            "categories": [{"id": 3 * number + 1, "name": name} for number, name in enumerate(CLASSES)],
        }
        self._lines: list[str] = []

    def draw(self, number: int, picture: Record) -> None:
        """Draw random boxes on a picture: none to three, by its number.

        Args:
            number: number of the picture.
            picture: its record without boxes.
        """
        height, width = picture["image/height"], picture["image/width"]
        name = picture["image/filename"]
        self._coco["images"].append({"id": number, "file_name": name, "height": height, "width": width})
        picture_features = (IMAGE, "image/filename", "image/format", "image/height", "image/width")
        lists: dict[str, list[Any]] = {f"image/object/{part}": [] for part in OBJECT_PARTS}
        for _ in range(number % 4):
            x, y = self._dice.uniform(0, width / 2), self._dice.uniform(0, height / 2)
            w, h = self._dice.uniform(0.1, width / 2), self._dice.uniform(0.1, height / 2)
            label, is_crowd = self._dice.randrange(len(CLASSES)), int(self._dice.random() < 0.3)
            # Half of the box, so that a reader cannot have computed the area.
            box = {"image_id": number, "category_id": 3 * label + 1, "bbox": [x, y, w, h], "area": w * h / 2}
            rows = self._coco["annotations"]
            rows.append({"id": len(rows) + 1, "iscrowd": is_crowd, "segmentation": [], **box})
            edges = y / height, (y + h) / height, x / width, (x + w) / width
            for part, value in zip(OBJECT_PARTS, (*edges, w * h / 2, label, CLASSES[label], is_crowd), strict=True):
                lists[f"image/object/{part}"].append(round_float(value) if isinstance(value, float) else value)
        record = {"image/source_id": str(number), **{key: picture[key] for key in picture_features}, **lists}
        self._lines.append(json.dumps(record) + "\n")

    def write(self, folder: Path) -> None:
        """Write `boxes.json`, the annotations, and `boxes.jsonl`, the records."""
        (folder / "boxes.json").write_text(json.dumps(self._coco))
        (folder / "boxes.jsonl").write_text("".join(self._lines))


def round_float(value: float) -> float:
    """Return a number rounded to five digits, so that it equals the same number after storage as float32."""
    return float(f"{value:.5g}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--draw"]:
        draw_pictures(Path(sys.argv[2]))
    else:
        sys.exit(main())

"""The program behind scripts/conformance."""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
READERS = ROOT / "scripts" / "_conformance_readers.py"
IMAGE = "image/encoded"

# By reader: the package whose version is shown, and what pip installs into the reader's own environment.
ENVIRONMENTS = {
    "tf_data": ("tensorflow", ["tensorflow>=2.20,<2.22"]),
    "tfds": ("tensorflow-datasets", ["tensorflow-datasets", "tensorflow>=2.20,<2.22"]),
    "beam": ("apache-beam", ["apache-beam", "google-crc32c", "tensorflow>=2.20,<2.22"]),
    "grain": ("grain", ["grain", "tensorflow>=2.20,<2.22"]),
    "tfrecord": ("tfrecord", ["tfrecord"]),
    # The limit is SeqIO's need, which its own requirements do not say.
    "seqio": ("seqio", ["seqio", "sentencepiece<0.2.1"]),
    "tf_models": ("tf-models-official", ["tf-models-official", "tensorflow==2.20.*"]),
}
PICTURES = 60


def main() -> int:
    """Converts pictures that it draws, reads them with every reader, prints a table; 1 where any record differs."""
    parser = argparse.ArgumentParser(prog="scripts/conformance", description=main.__doc__)
    parser.add_argument(
        "readers", nargs="*", metavar="READER", help=f"some of {', '.join(ENVIRONMENTS)} (default: all)"
    )
    parser.add_argument("--venvs", help="keep the virtual environments in this folder, and use those that are there")
    flags = parser.parse_args()
    unknown = sorted({*flags.readers} - {*ENVIRONMENTS})
    if unknown:
        parser.error(f"unknown reader {unknown[0]!r}; known: {', '.join(ENVIRONMENTS)}")
    with tempfile.TemporaryDirectory(prefix="tpudata-conformance-") as temporary:
        venvs = Path(flags.venvs or f"{temporary}/venvs").resolve()
        writer = environment(venvs / "tpudata", ["--editable", str(ROOT)])
        inputs, output = Path(temporary, "pictures"), Path(temporary, "dataset")
        subprocess.run([writer, __file__, "--draw", str(inputs)], check=True)
        expected = {record[IMAGE]: record for record in map(json.loads, inputs.with_suffix(".jsonl").open())}
        convert = [
            writer,
            "-m",
            "beam_jobs.images",
            "--input",
            str(inputs),
            "--output",
            str(output),
            "--shard-size=20kB",
        ]
        subprocess.run(convert, check=True, cwd=ROOT, stdout=subprocess.DEVNULL)
        subprocess.run([writer, "-m", "tpudata", "verify", str(output)], check=True, cwd=ROOT)
        rows = [compare(name, venvs, output, expected) for name in flags.readers or ENVIRONMENTS]
    print(f"\n| reader | package | version | records of {len(expected)} | equal |\n|---|---|---|---|---|")
    for row in rows:
        print("| " + " | ".join(row) + " |")
    return int(any(row[-1] != "yes" for row in rows))


def environment(folder: Path, packages: list[str]) -> str:
    """Makes a virtual environment where there is none, and returns its Python."""
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


def compare(name: str, venvs: Path, dataset: Path, expected: dict[str, dict[str, object]]) -> tuple[str, ...]:
    """The row of one reader: its version, how many records it gave, and whether they are those that were drawn."""
    package, packages = ENVIRONMENTS[name]
    python = environment(venvs / name, packages)
    version = f"import importlib.metadata as m; print(m.version({package!r}))"
    shown = subprocess.run([python, "-c", version], check=True, capture_output=True, text=True).stdout.strip()
    read = subprocess.run([python, str(READERS), name, str(dataset)], capture_output=True, text=True)
    if read.returncode:
        print(f"{name}:\n{read.stderr}", file=sys.stderr)
        return name, package, shown, "0", f"failed with exit code {read.returncode}"
    records = [json.loads(line) for line in read.stdout.splitlines()]
    different = differences(records, expected)
    for difference in different:
        print(f"{name}: {difference}", file=sys.stderr)
    return name, package, shown, str(len(records)), "no" if different else "yes"


def differences(records: list[dict[str, object]], expected: dict[str, dict[str, object]]) -> list[str]:
    """What is different, in words; a reader may know only some features, but the image is one of them."""
    out = [f"unknown image {record[IMAGE]}" for record in records if record[IMAGE] not in expected]
    for image, due in expected.items():
        found = [record for record in records if record[IMAGE] == image]
        if len(found) != 1:
            out.append(f"{due['image/filename']} comes {len(found)} times")
        out += [
            f"{due['image/filename']}: {key} is {value!r}, not {due[key]!r}"
            for record in found
            for key, value in record.items()
            if value != due[key]
        ]
    return out


def draw(folder: Path) -> None:
    """Draws pictures, and writes what each is into FOLDER.jsonl. Runs where Pillow is installed."""
    from PIL import Image

    dice, lines = random.Random(0), []
    classes = ("cat", "dog", "eel", "grüne Ente")
    for number in range(PICTURES):
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
    # Beside the folder: what is inside is input.
    folder.with_suffix(".jsonl").write_text("".join(lines))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--draw"]:
        draw(Path(sys.argv[2]))
    else:
        sys.exit(main())

"""What converting an image costs, beside a plain loop that copies files into a TFRecord file.

    python scripts/bench/convert.py [--pictures FOLDER] [--sizes 5000,20000] [--rounds 3]

The pictures, 200 JPEGs of about 110 kB drawn here unless a folder is named, are linked into class folders as often as needed. Each
round runs, in processes of their own and in turn: the plain loop, the job, and the job with --check=decode beside a loop that
decodes with Pillow. Figures are CPU seconds, of user and system; the cost of an image is the slope between two sizes, so that
start-up is apart. Nothing here passes or fails.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

PLAIN = """
import os, struct, sys
import google_crc32c
def masked(data):
    crc = google_crc32c.value(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
with open(sys.argv[2], "wb") as out:
    for folder in sorted(os.scandir(sys.argv[1]), key=lambda entry: entry.name):
        for entry in sorted(os.scandir(folder.path), key=lambda entry: entry.name):
            with open(entry.path, "rb") as file:
                data = file.read()
            length = struct.pack("<Q", len(data))
            out.write(length + struct.pack("<I", masked(length)))
            out.write(data)
            out.write(struct.pack("<I", masked(data)))
"""
PILLOW = """
import os, sys
from PIL import Image
for folder in sorted(os.scandir(sys.argv[1]), key=lambda entry: entry.name):
    for entry in os.scandir(folder.path):
        with Image.open(entry.path) as image:
            image.load()
"""


def main() -> None:
    """Runs the benchmark and prints its table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pictures", type=Path, help="a folder of JPEGs, in place of those drawn here")
    parser.add_argument("--sizes", default="5000,20000", help="numbers of images (default %(default)s)")
    parser.add_argument(
        "--rounds", type=int, default=3, help="rounds, of which the median counts (default %(default)s)"
    )
    flags = parser.parse_args()
    sizes = [int(size) for size in flags.sizes.split(",")]
    with tempfile.TemporaryDirectory(prefix="tpudata-bench-") as name:
        folder = Path(name)
        pictures = sorted(path for path in (flags.pictures or draw(folder / "drawn")).iterdir() if path.is_file())
        inputs = {size: link(pictures, folder / f"in{size}", size) for size in sizes}
        bytes_each = sum(path.stat().st_size for path in pictures) / len(pictures)
        print(f"{len(pictures)} pictures of {bytes_each / 1000:.0f} kB on average, {flags.rounds} rounds, CPU time")
        report(inputs, folder, flags.rounds)


def report(inputs: dict[int, Path], folder: Path, rounds: int) -> None:
    """Measures in turn, and prints the cost of an image and of starting up."""
    job = [sys.executable, "-m", "beam_jobs.images"]
    programs = {
        "plain loop": lambda path, out: [sys.executable, "-c", PLAIN, str(path), str(out)],
        "convert images": lambda path, out: [*job, "--input", str(path), "--output", str(out)],
        "Pillow decodes": lambda path, out: [sys.executable, "-c", PILLOW, str(path)],  # noqa: ARG005
        "convert, decode": lambda path, out: [*job, "--input", str(path), "--output", str(out), "--check=decode"],
    }
    small, large = min(inputs), max(inputs)
    costs: dict[str, list[tuple[float, float]]] = {name: [] for name in programs}
    for number in range(rounds):
        for name, command in programs.items():
            few, many = (measure(command(inputs[size], folder / f"out{number}{name}{size}")) for size in (small, large))
            each = (many - few) / (large - small)
            costs[name].append((each, few - each * small))
    print(f"{'':16} {'per image':>12} {'start-up':>10} {'ratio':>8}")
    for name, base in (
        ("plain loop", "plain loop"),
        ("convert images", "plain loop"),
        ("Pillow decodes", "Pillow decodes"),
        ("convert, decode", "Pillow decodes"),
    ):
        each = statistics.median(cost for cost, _ in costs[name])
        start = statistics.median(start for _, start in costs[name])
        pairs = [mine / theirs for (mine, _), (theirs, _) in zip(costs[name], costs[base], strict=True)]
        print(f"{name:16} {each * 1e6:9.0f} us {start:8.1f} s {statistics.median(pairs):8.2f}")


def measure(command: Sequence[str]) -> float:
    """CPU seconds, of user and system, of a command and its children."""
    before = os.times()
    code = os.spawnve(os.P_WAIT, command[0], list(command), {**os.environ, "PYTHONPATH": str(Path.cwd())})
    after = os.times()
    if code:
        raise SystemExit(f"failed with exit code {code}: {' '.join(command)[:200]}")
    return after.children_user + after.children_system - before.children_user - before.children_system


def draw(folder: Path, count: int = 200) -> Path:
    """Draws JPEGs of about 500 x 400 pixels, with enough in them to take about 110 kB each."""
    folder.mkdir()
    random = np.random.default_rng(0)
    for number in range(count):
        coarse = random.integers(0, 256, (50, 60, 3), dtype=np.uint8)
        picture = Image.fromarray(coarse).resize((500, 400), Image.Resampling.BICUBIC)
        noisy = np.clip(np.asarray(picture) + random.normal(0, 14, (400, 500, 1)), 0, 255).astype(np.uint8)
        Image.fromarray(noisy).save(folder / f"{number:03d}.jpg", quality=90)
    return folder


def link(pictures: Sequence[Path], folder: Path, count: int) -> Path:
    """Hard links to the pictures in 20 class folders, `count` in all."""
    for number in range(count):
        target = folder / f"class{number % 20:02d}" / f"{number:06d}.jpg"
        target.parent.mkdir(parents=True, exist_ok=True)
        source = pictures[number % len(pictures)]
        try:
            target.hardlink_to(source)
        except OSError:
            target.write_bytes(source.read_bytes())
    return folder


if __name__ == "__main__":
    main()

"""Cost of converting an image, next to plain loops over the same files.

    python scripts/bench/convert.py [--pictures FOLDER] [--sizes 5000,20000] [--rounds 3] [--programs NAME,...]

The pictures, 200 JPEGs of about 117 kB drawn here unless a folder is named, are linked into class folders as often as needed. Each
round runs, in separate processes and in turn:

    plain       reads each file and writes it framed with its CRC; without TensorFlow
    convert     the job
    tensorflow  decodes each file with tf.io.decode_jpeg and writes a tf.train.Example, as scripts before Beam did; in eager mode
    pillow      decodes each file with Pillow, and writes nothing
    decode      the job with --check=decode
    decode2     the same with --workers=2

CPU times are of user and system. The cost of an image, in CPU time and by the clock, is the slope between two sizes, without the
start-up. Nothing here passes or fails.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image

# Programs of other sides, which get the folder of the pictures and the path of their output.
PLAIN = """
import os, struct, sys
import google_crc32c
def mask_crc(data):
    crc = google_crc32c.value(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
with open(sys.argv[2], "wb") as out:
    for folder in sorted(os.scandir(sys.argv[1]), key=lambda entry: entry.name):
        for entry in sorted(os.scandir(folder.path), key=lambda entry: entry.name):
            with open(entry.path, "rb") as file:
                data = file.read()
            length = struct.pack("<Q", len(data))
            out.write(length + struct.pack("<I", mask_crc(length)))
            out.write(data)
            out.write(struct.pack("<I", mask_crc(data)))
"""
PILLOW = """
import os, sys
from PIL import Image
for folder in sorted(os.scandir(sys.argv[1]), key=lambda entry: entry.name):
    for entry in os.scandir(folder.path):
        with Image.open(entry.path) as image:
            image.load()
"""


TENSORFLOW = """
import os, sys
import tensorflow as tf
def make_feature(value):
    if isinstance(value, bytes):
        return tf.train.Feature(bytes_list=tf.train.BytesList(value=[value]))
    return tf.train.Feature(int64_list=tf.train.Int64List(value=[value]))
with tf.io.TFRecordWriter(sys.argv[2]) as out:
    for label, folder in enumerate(sorted(os.scandir(sys.argv[1]), key=lambda entry: entry.name)):
        for entry in os.scandir(folder.path):
            with open(entry.path, "rb") as file:
                data = file.read()
            height, width, channels = tf.io.decode_jpeg(data, channels=3).shape
            values = {"image/encoded": data, "image/format": b"JPEG", "image/height": height, "image/width": width,
                      "image/channels": channels, "image/colorspace": b"RGB", "image/class/label": label,
                      "image/class/text": folder.name.encode(), "image/filename": entry.name.encode()}
            feature = {name: make_feature(value) for name, value in values.items()}
            out.write(tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString())
"""
JOB = [sys.executable, "-m", "beam_jobs.images", "--input={input}", "--output={output}"]
PROGRAMS = {
    "plain": [sys.executable, "-c", PLAIN, "{input}", "{output}"],
    "convert": JOB,
    "tensorflow": [sys.executable, "-c", TENSORFLOW, "{input}", "{output}"],
    "pillow": [sys.executable, "-c", PILLOW, "{input}"],
    "decode": [*JOB, "--check=decode"],
    "decode2": [*JOB, "--check=decode", "--workers=2"],
}


class Cost(NamedTuple):
    """Cost of a command: CPU seconds, seconds by the clock, and peak bytes of its largest process."""

    cpu: float
    clock: float
    memory: float


def main() -> None:
    """Run the benchmark and print its table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pictures", type=Path, help="a folder of JPEGs, in place of those drawn here")
    parser.add_argument("--sizes", default="5000,20000", help="numbers of images (default %(default)s)")
    parser.add_argument(
        "--rounds", type=int, default=3, help="rounds, of which the median counts (default %(default)s)"
    )
    parser.add_argument("--programs", default=",".join(PROGRAMS), help="which to run (default all)")
    flags = parser.parse_args()
    sizes = [int(size) for size in flags.sizes.split(",")]
    if len(set(sizes)) < 2:
        parser.error(f"--sizes {flags.sizes}: too few (expected two different numbers or more). Add one.")
    with tempfile.TemporaryDirectory(prefix="tpudata-bench-") as name:
        folder = Path(name)
        pictures_folder = flags.pictures or draw_pictures(folder / "drawn")
        pictures = sorted(path for path in pictures_folder.iterdir() if path.is_file())
        if not pictures:
            parser.error(f"--pictures {pictures_folder}: no files (expected JPEGs). Pass another folder.")
        inputs = {size: link_pictures(pictures, folder / f"in{size}", size) for size in sizes}
        mean_bytes = sum(path.stat().st_size for path in pictures) / len(pictures)
        print(f"{len(pictures)} pictures of {mean_bytes / 1000:.0f} kB on average, {flags.rounds} rounds")
        report(inputs, folder, flags.rounds, flags.programs.split(","))


def report(inputs: dict[int, Path], folder: Path, round_count: int, names: Sequence[str]) -> None:
    """Run programs in turn, and print for each the cost of an image and of the start-up, its memory, and ratios of CPU times.

    Args:
        inputs: folders of pictures by their number, at least two.
        folder: folder for outputs.
        round_count: number of rounds.
        names: names of the programs.
    """
    small, large = min(inputs), max(inputs)
    image_cpu: dict[str, list[float]] = {name: [] for name in names}
    image_clock: dict[str, list[float]] = {name: [] for name in names}
    startup_cpu: dict[str, list[float]] = {name: [] for name in names}
    memory = dict.fromkeys(names, 0.0)
    for number in range(round_count):
        for name in names:
            small_cost, large_cost = (
                measure(PROGRAMS[name], inputs[size], folder / f"out{number}{name}{size}") for size in (small, large)
            )
            # The difference of two runs does not include the start-up.
            image_cpu[name].append((large_cost.cpu - small_cost.cpu) / (large - small))
            image_clock[name].append((large_cost.clock - small_cost.clock) / (large - small))
            startup_cpu[name].append(small_cost.cpu - image_cpu[name][-1] * small)
            memory[name] = max(memory[name], large_cost.memory)
    print(
        f"{'':12}{'CPU an image':>14}{'by the clock':>14}{'start-up':>10}{'memory':>10}{'of plain':>10}{'of Pillow':>10}"
    )
    for name in names:
        cpu, clock, startup = (statistics.median(times[name]) for times in (image_cpu, image_clock, startup_cpu))
        ratios = ""
        for base in ("plain", "pillow"):
            if base in image_cpu:
                pairs = zip(image_cpu[name], image_cpu[base], strict=True)
                ratio = statistics.median(seconds / base_seconds for seconds, base_seconds in pairs)
                ratios += f"{ratio:10.2f}"
            else:
                ratios += f"{'':10}"
        print(
            f"{name:12}{cpu * 1e6:11.0f} us{clock * 1e6:11.0f} us{startup:8.1f} s{memory[name] / 1e6:7.0f} MB{ratios}"
        )


def measure(command: Sequence[str], source: Path, output: Path) -> Cost:
    """Run a command in a separate process, remove its output, and return its cost.

    Args:
        command: words of the command, in which `{input}` and `{output}` stand for the paths.
        source: folder of the pictures.
        output: path of the output.
    """
    words = [word.replace("{input}", str(source)).replace("{output}", str(output)) for word in command]
    begin = time.monotonic()
    pid = os.posix_spawn(words[0], words, {**os.environ, "PYTHONPATH": str(Path.cwd()), "TF_CPP_MIN_LOG_LEVEL": "3"})
    # The usage includes the child processes for which the process has waited.
    _, status, usage = os.wait4(pid, 0)
    if status:
        raise SystemExit(f"failed with status {status}: {' '.join(words)[:200]}")
    clock = time.monotonic() - begin
    if output.is_dir():
        shutil.rmtree(output, ignore_errors=True)
    else:
        output.unlink(missing_ok=True)
    # `ru_maxrss` is in units of 1,024 bytes.
    return Cost(usage.ru_utime + usage.ru_stime, clock, usage.ru_maxrss * 1024)


def draw_pictures(folder: Path, count: int = 200) -> Path:
    """Draw noisy JPEGs of 500 x 400 pixels and about 117 kB, and return their folder."""
    folder.mkdir()
    random = np.random.default_rng(0)
    for number in range(count):
        coarse = random.integers(0, 256, (50, 60, 3), dtype=np.uint8)
        picture = Image.fromarray(coarse).resize((500, 400), Image.Resampling.BICUBIC)
        noisy = np.clip(np.asarray(picture) + random.normal(0, 14, (400, 500, 1)), 0, 255).astype(np.uint8)
        Image.fromarray(noisy).save(folder / f"{number:03d}.jpg", quality=90)
    return folder


def link_pictures(pictures: Sequence[Path], folder: Path, count: int) -> Path:
    """Make `count` hard links to pictures, in turn, in 20 class folders of `folder`; return `folder`.

    Without hard links between the folders' file systems, make copies.
    """
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

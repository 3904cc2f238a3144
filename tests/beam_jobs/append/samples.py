"""A dataset to append to."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from beam_jobs.images import run
from tpudata.format import open_dataset, verify

FLAGS = ("--split=train=0.7,validation=0.3", "--shard-size=15kB", "--on-bad-record=skip", "--max-bad-records=50%")


REJECTED = ("dog/x.jpg", "eel/y.png")


class Sample(NamedTuple):
    """A folder of pictures, and a dataset made from it."""

    source: Path
    output: Path

    def convert(self, *flags: str, output: Path | None = None) -> int:
        return run(["--input", str(self.source), "--output", str(output or self.output), *FLAGS, *flags])

    def copied(self, folder: Path) -> Sample:
        return Sample(shutil.copytree(self.source, folder / "in"), shutil.copytree(self.output, folder / "out"))

    def grow(self) -> None:
        """Adds nine pictures to two of the classes and a new class, which is the first by name, and takes one away."""
        random = np.random.default_rng(1)
        for number in range(9):
            path = self.source / ("cat", "dog", "ant")[number % 3] / f"new{number}.png"
            path.parent.mkdir(exist_ok=True)
            Image.fromarray(random.integers(0, 256, (40, 60, 3), dtype=np.uint8)).save(path)
        (self.source / "cat" / "000.jpg").unlink()

    def records(self, output: Path | None = None) -> dict[str, tuple[str, Any, Any, Any]]:
        """By key: split, label, class name and bytes."""
        dataset = open_dataset(str(output or self.output))
        found: dict[str, tuple[str, Any, Any, Any]] = {}
        for split in dataset.manifest.splits:
            for example in dataset.examples(split):
                (name,) = example["image/filename"]
                assert isinstance(name, bytes)
                assert name.decode() not in found
                label, text = example["image/class/label"][0], example["image/class/text"][0]
                found[name.decode()] = split, label, text, example["image/encoded"][0]
        return found

    def state(self) -> dict[str, tuple[int, bytes]]:
        """Time and content of every file of the dataset."""
        files = (path for path in self.output.rglob("*") if path.is_file())
        return {str(path): (path.stat().st_mtime_ns, path.read_bytes()) for path in files}


def defects(output: Path) -> list[str]:
    return [str(defect) for defect in verify(str(output))]

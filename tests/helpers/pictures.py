"""Folders of pictures to convert, one for each class, and what a conversion leaves."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
from PIL import Image

CLASSES = ("cat", "dog", "eel")


def make_pictures(root: Path, count: int = 60, seed: int = 0) -> Path:
    """Writes `count` pictures of noise, PNG and JPEG, grey and coloured, of many sizes, into three class folders."""
    random = np.random.default_rng(seed)
    for number in range(count):
        folder = root / CLASSES[number % 3]
        folder.mkdir(parents=True, exist_ok=True)
        size = tuple(random.integers(8, 64, 2))
        shape = size if number % 5 == 0 else (*size, 3)
        picture = Image.fromarray(random.integers(0, 256, shape, dtype=np.uint8))
        picture.save(folder / f"{number:03d}.{'png' if number % 2 else 'jpg'}")
    return root


def digests(folder: Path) -> dict[str, str]:
    """SHA-256 of every file below a folder, hidden ones too."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }

"""What the tests of sources share: small real images and archives, and what a source says of them."""

from __future__ import annotations

import dataclasses
import io
import tarfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from PIL import Image

import tpudata
from beam_jobs.options import ConvertOptions, SplitShares
from beam_jobs.references.reference import WHOLE_FILE, Reference
from beam_jobs.sources import Source, SourceOptions
from beam_jobs.sources.open_source import open_source
from beam_jobs.sources.source import ScannedSource
from beam_jobs.steps.listing.scan_source import scan_here
from tpudata.errors import BadRecordError
from tpudata.format import open_dataset


def jpeg(number: int) -> bytes:
    """A JPEG that no other number has."""
    buffer = io.BytesIO()
    Image.new("RGB", (8 + number % 5, 6), (number * 37 % 256, number * 11 % 256, number % 256)).save(buffer, "JPEG")
    return buffer.getvalue()


def write_files(root: Path, files: Mapping[str, bytes]) -> Path:
    for name, data in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return root


def tar_bytes(files: Iterable[tuple[str, bytes]], form: int = tarfile.GNU_FORMAT, mode: str = "w") -> bytes:
    """A tar as Python writes it."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode, format=form) as tar:  # type: ignore[call-overload]
        for name, data in files:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def options(input: Path | str, output: Path | str = "unused", split: str | None = None) -> ConvertOptions:
    return ConvertOptions(str(input), str(output), SplitShares.parse(split) if split else None)


def opened(input: Path | str, said: SourceOptions | None = None, split: str | None = None, **limits: Any) -> Source:
    """The source of an input, once it is scanned; `limits` are fields of it."""
    source: Any = open_source(options(input, split=split), said)
    if limits:
        source = dataclasses.replace(source, **limits)
    return scan_here(source) if isinstance(source, ScannedSource) else source


def units(source: Source, passed: list[str] | None = None) -> list[Any]:
    ignored = [] if passed is None else passed
    return [unit for part in source.parts() for unit in source.units(part, ignored)]


def listed(source: Source) -> list[Reference]:
    return [reference for unit in units(source) for reference in source.references(unit, [])]


def listed_and_rejected(source: Source) -> tuple[list[Reference], list[BadRecordError]]:
    rejected: list[BadRecordError] = []
    found = [reference for unit in units(source) for reference in source.references(unit, [], rejected.append)]
    return found, rejected


def ignored(source: Source) -> list[str]:
    passed: list[str] = []
    for unit in units(source, passed):
        list(source.references(unit, passed))
    return passed


def data_of(reference: Reference) -> bytes:
    """The bytes a reference points to, read without the code under test."""
    if reference.data:
        return reference.data
    data = Path(reference.path).read_bytes()
    if reference.offset == WHOLE_FILE:
        assert reference.size == len(data)
        return data
    return data[reference.offset : reference.offset + reference.size]


def summary(source: Source) -> dict[str, tuple[str, tuple[str, ...], bytes]]:
    """By key: split, labels and bytes."""
    references = listed(source)
    found = {ref.key: (ref.split, ref.labels, data_of(ref)) for ref in references}
    assert len(found) == len(references)
    return found


def converted(input: Path | str, output: Path) -> dict[str, dict[bytes, tuple[int, bytes]]]:
    """Runs the job, and reads its records back: by split and key, label and bytes of the image."""
    tpudata.convert_images(input, output)
    dataset = open_dataset(str(output))
    found: dict[str, dict[bytes, tuple[int, bytes]]] = {}
    for split in dataset.manifest.splits:
        found[split] = {}
        for example in dataset.examples(split):
            key, label, image = (example[f"image/{name}"][0] for name in ("filename", "class/label", "encoded"))
            assert isinstance(key, bytes)
            assert isinstance(label, int)
            assert isinstance(image, bytes)
            found[split][key] = (label, image)
    return found


def write_list(folder: Path, text: str | bytes, images: int = 3, name: str = "list.csv") -> Path:
    write_files(folder, {f"{number}.jpg": jpeg(number) for number in range(images)})
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def extras(path: Path, said: SourceOptions | None = None, **limits: Any) -> list[dict[str, object]]:
    return [dict(reference.features) for reference in listed(opened(path, said, **limits))]

"""What a report looks at: some records of each split, picked by a fixed seed and read through the index."""

from __future__ import annotations

import dataclasses
import hashlib
import io
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from PIL import Image

from tpudata.format import Dataset, Feature
from tpudata.format.example import decode_example
from tpudata.source import RecordSource

DEFAULT_SAMPLES = 2000
_BATCH = 64
_PICTURES_A_CLASS, _PICTURES, _TEXTS = 6, 120, 12
_THUMBNAIL = 96
_TOKENS = "input_ids"


@dataclasses.dataclass
class SplitSample:
    """What was found in some records of a split.

    Attributes:
        total: records of the split.
        looked_at: how many of them were read.
        record_bytes: of each.
        classes: how many have a class, by its name; empty without classes.
        sizes: (height, width) of each picture.
        unreadable: pictures that could not be decoded.
        pictures: thumbnails by class (`""` without classes): PNG files.
        texts: some texts, or ids of tokens.
        lengths: of each text in characters, or of tokens without padding.
        places: of tokens, padding and all.
        duplicates: records whose picture or text is that of another one.
    """

    total: int
    looked_at: int = 0
    record_bytes: list[int] = dataclasses.field(default_factory=list)
    classes: Counter[str] = dataclasses.field(default_factory=Counter)
    sizes: list[tuple[int, int]] = dataclasses.field(default_factory=list)
    unreadable: int = 0
    pictures: dict[str, list[bytes]] = dataclasses.field(default_factory=dict)
    texts: list[str | list[int]] = dataclasses.field(default_factory=list)
    lengths: list[int] = dataclasses.field(default_factory=list)
    places: int = 0
    duplicates: int = 0


def sample_dataset(dataset: Dataset, samples: int = DEFAULT_SAMPLES) -> dict[str, SplitSample]:
    """Read some records of each split; the same ones in every run.

    Args:
        dataset: which one.
        samples: how many records of a split, at most.

    Raises:
        CorruptionError: one of them is damaged.
        StorageError: a shard or its index cannot be read.
    """
    return {name: _sampled(dataset, name, samples) for name in dataset.manifest.splits}


def _sampled(dataset: Dataset, split: str, samples: int) -> SplitSample:
    source = RecordSource(dataset.path, split, decode=None)
    found, seen = SplitSample(len(source)), set[bytes]()
    reader = _Reader(dataset)
    count = min(samples, len(source))
    numbers = np.sort(np.random.default_rng(0).choice(len(source), count, replace=False)).tolist()
    for first in range(0, count, _BATCH):
        for data in source.__getitems__(numbers[first : first + _BATCH]):
            digest = reader.add(data, found)
            found.duplicates += digest in seen
            seen.add(digest)
    found.looked_at = count
    return found


class _Reader:
    """Takes records apart by the features of a manifest."""

    def __init__(self, dataset: Dataset) -> None:
        features = {feature.name: feature for feature in dataset.manifest.features}
        self._names = dataset.labels() or ()
        self._label = next((feature for feature in features.values() if feature.num_classes is not None), None)
        # A list of labels has no number of classes.
        self._label = self._label or features.get("image/class/label") or features.get("label")
        self._image = next((f for f in features.values() if f.encoding == "image"), None)
        self._pixels = next((f for f in features.values() if f.encoding == "raw" and _is_picture(f)), None)
        self._text = next(
            (f for f in features.values() if f.encoding == "utf8" and not f.name.startswith("image/")), None
        )
        self._tokens = features.get(_TOKENS)
        self._segments = "segment_ids" in features

    def add(self, data: bytes, found: SplitSample) -> bytes:
        """Add a record to what was found; return a digest of its content."""
        values = decode_example(data)
        found.record_bytes.append(len(data))
        classes = self._classes(values)
        found.classes.update(classes)
        content: Any = data
        if self._image is not None:
            (content,) = values[self._image.name]
            self._add_picture(lambda: Image.open(io.BytesIO(content)), classes, found)
        elif self._pixels is not None:
            (content,) = values[self._pixels.name]
            height, width, channels = (size or 0 for size in self._pixels.shape)
            array = np.frombuffer(content, np.uint8).reshape(height, width, channels)
            self._add_picture(lambda: Image.fromarray(array[:, :, 0] if channels == 1 else array), classes, found)
        elif self._tokens is not None:
            content = self._add_tokens(values, found)
        elif self._text is not None:
            content = b"".join(map(bytes, values.get(self._text.name, [])))  # type: ignore[arg-type]
            text = content.decode("utf-8", "replace")
            found.lengths.append(len(text))
            if len(found.texts) < _TEXTS:
                found.texts.append(text)
        return hashlib.blake2b(content, digest_size=16).digest()

    def _classes(self, values: Mapping[str, Sequence[Any]]) -> list[str]:
        if self._label is None or not self._names:
            return []
        numbers = [int(value) - self._label.label_offset for value in values.get(self._label.name, [])]
        known = [number for number in numbers if 0 <= number < len(self._names)]
        return [self._names[number] for number in known]

    @staticmethod
    def _add_picture(opened: Any, classes: Sequence[str], found: SplitSample) -> None:
        name = classes[0] if classes else ""
        kept = found.pictures.get(name, [])
        try:
            picture = opened()
            found.sizes.append((picture.height, picture.width))
            wanted = _PICTURES_A_CLASS if classes else _PICTURES // 4
            if len(kept) < wanted and sum(map(len, found.pictures.values())) < _PICTURES:
                found.pictures.setdefault(name, []).append(_thumbnail(picture))
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
            found.unreadable += 1

    def _add_tokens(self, values: Mapping[str, Sequence[Any]], found: SplitSample) -> bytes:
        assert self._tokens is not None
        ids = _integers(values[_TOKENS], self._tokens)
        real = ids
        if self._segments:
            real = ids[: int(np.count_nonzero(_integers(values["segment_ids"], self._tokens)))]
        found.places += len(ids)
        found.lengths.append(len(real))
        if len(found.texts) < _TEXTS:
            found.texts.append(real.tolist())
        return ids.tobytes()


def _is_picture(feature: Feature) -> bool:
    return feature.dtype == "uint8" and len(feature.shape) == 3 and None not in feature.shape


def _integers(values: Sequence[Any], feature: Feature) -> np.ndarray[Any, Any]:
    if feature.encoding == "raw":
        return np.frombuffer(b"".join(values), np.dtype(feature.dtype).newbyteorder("<"))
    return np.asarray(values, np.int64)


def _thumbnail(picture: Image.Image) -> bytes:
    """Return a small PNG of a picture."""
    picture.draft("RGB", (2 * _THUMBNAIL, 2 * _THUMBNAIL))
    small = picture.convert("L" if picture.mode in ("1", "L", "I;16") else "RGB")
    if max(small.size) < _THUMBNAIL // 2:
        # Digits of 8 pixels are to be seen, too.
        factor = _THUMBNAIL // max(small.size)
        small = small.resize((small.width * factor, small.height * factor), Image.Resampling.NEAREST)
    small.thumbnail((_THUMBNAIL, _THUMBNAIL))
    file = io.BytesIO()
    small.save(file, "PNG", optimize=True)
    return file.getvalue()

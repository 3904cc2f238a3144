"""Counts of a report from one record, by the features of the manifest."""

from __future__ import annotations

import dataclasses
import hashlib
import io
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from PIL import Image

from tpudata.errors import TpudataError
from tpudata.format import Dataset, Feature
from tpudata.format.example.decode import decode_example
from tpudata.format.verification.record_check import RecordCheck
from tpudata.report.outline import Outlines, outline
from tpudata.report.split_sample import SplitSample, Text
from tpudata.source.example_decoder import decode_label_map

_PICTURES_A_CLASS, _PICTURES, _TEXTS_A_CLASS, _TEXTS = 6, 120, 3, 12
_THUMBNAIL = 96
_TOKENS, _SEGMENTS = "input_ids", "segment_ids"
_Ids: TypeAlias = "np.ndarray[Any, Any]"
_BROKEN = (OSError, ValueError, SyntaxError, EOFError, Image.DecompressionBombError, TpudataError)


class RecordReader:
    """Reader of the records of one split.

    Args:
        dataset: the dataset.

    """

    def __init__(self, dataset: Dataset) -> None:
        self._outlines, self._folded = Outlines(), set[bytes]()
        features = {feature.name: feature for feature in dataset.manifest.features}
        self._names = dataset.labels() or ()
        self._label = next((feature for feature in features.values() if feature.num_classes is not None), None)
        # A list of labels has no number of classes.
        self._label = self._label or features.get("image/class/label") or features.get("label")
        self._image = next((f for f in features.values() if f.encoding == "image"), None)
        self._maps = [feature for feature in features.values() if feature.is_label_map]
        self._pixels = next((f for f in features.values() if f.encoding == "raw" and _is_picture(f)), None)
        self._text = next(
            (f for f in features.values() if f.encoding == "utf8" and not f.name.startswith("image/")), None
        )
        self._tokens, self._segments = features.get(_TOKENS), features.get(_SEGMENTS)
        tokenizer = dataset.manifest.options.get("tokenizer")
        self._eos_id = tokenizer.get("eos_id") if isinstance(tokenizer, dict) else None
        used = (self._label, self._image, self._pixels, self._text, self._tokens, self._segments, *self._maps)
        self._used = {feature.name: feature for feature in used if feature is not None}
        self._check = RecordCheck(dataclasses.replace(dataset.manifest, features=tuple(self._used.values())))

    def add(self, data: bytes, found: SplitSample) -> tuple[bytes, bool]:
        """Add a record to the statistics.

        Args:
            data: the serialized record.
            found: the statistics.

        Returns:
            The digest of its content, and whether it is nearly the same as that of an earlier record.
        """
        example = decode_example(data)
        values = {name: example[name] for name in self._used if name in example}
        found.record_bytes.append(len(data))
        if any(self._check.problems(values)):
            found.misfits += 1
            return _digest(data), False
        classes = self._classes(values)
        found.classes.update(classes)
        content: Any = data
        is_near = False
        shown = self._image or self._pixels or next(iter(self._maps), None)
        if shown is not None:
            (content,) = values[shown.name]
            maps = [(feature, values[feature.name][0]) for feature in self._maps if feature is not shown]
            is_near = self._add_outline(_add_picture(content, shown, maps, classes, found))
        elif self._tokens is not None:
            content = self._add_tokens(values, classes, found)
        elif self._text is not None:
            content = b"".join(map(bytes, values.get(self._text.name, [])))  # type: ignore[arg-type]
            text = content.decode("utf-8", "replace")
            found.lengths.append(len(text))
            _add_text(text, classes, found)
            folded = _digest(" ".join(text.casefold().split()).encode())
            is_near = folded in self._folded
            self._folded.add(folded)
        return _digest(content), is_near

    def _add_outline(self, found: int | None) -> bool:
        return found is not None and self._outlines.add(found)

    def _classes(self, values: Mapping[str, Sequence[Any]]) -> list[str]:
        if self._label is None or not self._names:
            return []
        numbers = [int(value) - self._label.label_offset for value in values.get(self._label.name, [])]
        return [self._names[number] for number in numbers if 0 <= number < len(self._names)]

    def _add_tokens(self, values: Mapping[str, Sequence[Any]], classes: Sequence[str], found: SplitSample) -> bytes:
        assert self._tokens is not None
        # A list without values may be absent.
        ids = _integers(values.get(_TOKENS, []), self._tokens)
        real, segments = ids, None
        if self._segments is not None:
            segments = _integers(values.get(_SEGMENTS, []), self._segments)
            segments = segments[: int(np.count_nonzero(segments))]
            real = ids[: len(segments)]
        found.places += len(ids)
        found.lengths.append(len(real))
        found.tokens.update(real.tolist())
        _add_text(self._documents(real, segments), classes, found)
        return ids.tobytes()

    def _documents(self, ids: _Ids, segments: _Ids | None) -> list[list[int]]:
        """Return the documents of a row: those of its segments, or else up to each end of a document."""
        if segments is not None:
            ends = np.flatnonzero(np.diff(segments)) + 1
        elif self._eos_id is not None:
            ends = np.flatnonzero(ids[:-1] == self._eos_id) + 1
        else:
            ends = np.array([], np.int64)
        return [part.tolist() for part in np.split(ids, ends)]


def _add_text(text: Text, classes: Sequence[str], found: SplitSample) -> None:
    name = classes[0] if classes else ""
    kept = found.texts.get(name, [])
    most = _TEXTS_A_CLASS if classes else _TEXTS
    # With many classes, one text each shows more than three of a few.
    if len(kept) < most and (len(found.texts) < _TEXTS or kept):
        found.texts.setdefault(name, []).append(text)


def _add_picture(
    content: bytes,
    feature: Feature,
    maps: Sequence[tuple[Feature, Any]],
    classes: Sequence[str],
    found: SplitSample,
) -> int | None:
    """Add a picture, encoded, of bare pixels or a label map, with its label maps; return its outline."""
    name = classes[0] if classes else ""
    wanted = _PICTURES_A_CLASS if classes else _PICTURES // 4
    try:
        picture = _opened(content, feature)
        found.sizes.append((picture.height, picture.width))
        # JPEGs are decoded at a fraction of their size.
        picture.draft("RGB", (2 * _THUMBNAIL, 2 * _THUMBNAIL))
        plain = picture.convert("L" if picture.mode in ("1", "L", "I;16") else "RGB")
        if len(found.pictures.get(name, [])) < wanted and sum(map(len, found.pictures.values())) < _PICTURES:
            coloured = [_coloured(map_feature, data) for map_feature, data in maps]
            found.pictures.setdefault(name, []).append(_thumbnail(plain, coloured))
        return outline(plain)
    except _BROKEN:
        found.unreadable += 1
        return None


def _opened(content: bytes, feature: Feature) -> Image.Image:
    if feature.is_label_map:
        return _coloured(feature, content)
    return Image.open(io.BytesIO(content)) if feature.encoding == "image" else _bare(content, feature)


def _coloured(feature: Feature, content: bytes) -> Image.Image:
    """Return a label map in colours, those of PASCAL VOC: a class has the same in all records."""
    classes = decode_label_map(feature, content)[:, :, 0]
    # Bits 0, 3 and 6 of the class become the highest ones of red, bits 1, 4 and 7 of green, bits 2 and 5 of blue.
    colours = np.zeros((*classes.shape, 3), np.uint8)
    for bit in range(8):
        colours[..., bit % 3] |= ((classes >> bit & 1) << (7 - bit // 3)).astype(np.uint8)
    return Image.fromarray(colours)


def _bare(content: bytes, feature: Feature) -> Image.Image:
    height, width, channels = (size or 0 for size in feature.shape)
    array = np.frombuffer(content, np.uint8).reshape(height, width, channels)
    return Image.fromarray(array[:, :, 0] if channels == 1 else array)


def _is_picture(feature: Feature) -> bool:
    return feature.is_image and feature.is_static and feature.shape[2] in (1, 3, 4)


def _integers(values: Sequence[Any], feature: Feature) -> _Ids:
    if feature.encoding == "raw":
        return np.frombuffer(b"".join(values), np.dtype(feature.dtype).newbyteorder("<"))
    return np.asarray(values, np.int64)


def _digest(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=16).digest()


def _thumbnail(picture: Image.Image, maps: Sequence[Image.Image] = ()) -> bytes:
    """Return a small PNG of a picture of mode L or RGB, with its label maps to the right of it."""
    small = _small(picture)
    if maps:
        row = Image.new("RGB", (small.width * (1 + len(maps)), small.height))
        row.paste(small, (0, 0))
        for number, one in enumerate(maps, 1):
            row.paste(one.resize(small.size, Image.Resampling.NEAREST), (number * small.width, 0))
        small = row
    file = io.BytesIO()
    small.save(file, "PNG", optimize=True)
    return file.getvalue()


def _small(picture: Image.Image) -> Image.Image:
    small = picture
    if max(small.size) < _THUMBNAIL // 2:
        # Digits of 8 pixels would be too small to see.
        factor = _THUMBNAIL // max(small.size)
        small = small.resize((small.width * factor, small.height * factor), Image.Resampling.NEAREST)
    small = small.copy()
    small.thumbnail((_THUMBNAIL, _THUMBNAIL))
    return small

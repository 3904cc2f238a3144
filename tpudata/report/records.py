"""Counts of a report from one record, by the features of the manifest."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from PIL import Image

from tpudata.errors import TpudataError
from tpudata.format import Dataset, Feature
from tpudata.format.example.decode import decode_example
from tpudata.format.manifest.annotation_features import caption_feature, object_tables
from tpudata.format.verification.record_check import RecordCheck
from tpudata.report.outline import Outlines, outline
from tpudata.report.pictures import colour_map, encode_png, is_picture, open_picture, thumbnail
from tpudata.report.split_sample import ClassedText, SamplePart, SamplePicture, SplitSample, Text
from tpudata.report.texts import join_sides, text_columns

_PICTURES_A_CLASS, _PICTURES, _TEXTS_A_CLASS, _TEXTS = 6, 120, 3, 12
_SIDE = 96
# Pictures with annotations are larger, and fewer.
_ANNOTATED_SIDE, _ANNOTATED_PICTURES = 192, 24
_BROKEN = (OSError, ValueError, SyntaxError, EOFError, Image.DecompressionBombError, TpudataError)


class SampleReader:
    """Reader of the records of one split.

    Args:
        dataset: the dataset.

    """

    def __init__(self, dataset: Dataset) -> None:
        self._outlines, self._folded = Outlines(), set[bytes]()
        manifest = dataset.manifest
        features = {feature.name: feature for feature in manifest.features}
        self._names = dataset.labels() or ()
        self._table = next(iter(object_tables(manifest.features)), None)
        columns = () if self._table is None else self._table.columns
        self._label = next((f for f in features.values() if f.num_classes is not None and f not in columns), None)
        # A list of labels has no number of classes.
        self._label = self._label or features.get("image/class/label") or features.get("label")
        self._num_classes = (self._label.num_classes if self._label is not None else None) or len(self._names) or 1
        self._captions = caption_feature(manifest.features)
        self._image = next((f for f in features.values() if f.encoding == "image"), None)
        self._maps = [feature for feature in features.values() if feature.is_label_map]
        self._pixels = next((f for f in features.values() if f.encoding == "raw" and is_picture(f)), None)
        self._shown = self._image or self._pixels or next(iter(self._maps), None)
        self._texts = () if self._shown is not None else text_columns(manifest)
        tokenizer = manifest.options.get("tokenizer")
        self._eos_id = tokenizer.get("eos_id") if isinstance(tokenizer, dict) else None
        objects = () if self._table is None else (*self._table.box_columns, self._table.label, self._table.texts)
        texts = [feature for column in self._texts for feature in column.features]
        used_features = (self._label, self._image, self._pixels, self._captions, *self._maps, *objects, *texts)
        self._used = {feature.name: feature for feature in used_features if feature is not None}
        self._check = RecordCheck(dataclasses.replace(manifest, features=tuple(self._used.values())))

    def add(self, data: bytes, sample: SplitSample) -> tuple[bytes, bool]:
        """Add a record to the statistics.

        Args:
            data: the serialized record.
            sample: the statistics.

        Returns:
            The digest of its content, and whether it is nearly the same as that of an earlier record.
        """
        example = decode_example(data)
        values: Mapping[str, Any] = {name: example[name] for name in self._used if name in example}
        sample.record_bytes.append(len(data))
        if any(self._check.find_problems(values)):
            sample.misfits += 1
            return _digest(data), False
        classes = self._name_classes(values)
        sample.classes.update(classes)
        if self._shown is not None:
            (content,) = values[self._shown.name]
            self._count_objects(values, sample)
            edge = self._add_picture(content, self._shown, values, classes, sample)
            return _digest(content), edge is not None and self._outlines.add(edge)
        if not self._texts:
            return _digest(data), False
        add = self._add_tokens if self._texts[0].is_tokens else self._add_strings
        return add(values, classes, sample)

    def _name_classes(self, values: Mapping[str, Any]) -> tuple[str, ...]:
        if self._label is None or self._label.kind != "int64":
            return ()
        numbers = [int(value) for value in values.get(self._label.name, [])]
        if not self._names:
            return tuple(map(str, numbers))
        indices = [number - self._label.label_offset for number in numbers]
        return tuple(self._names[index] for index in indices if 0 <= index < len(self._names))

    def _count_objects(self, values: Mapping[str, Any], sample: SplitSample) -> None:
        if self._table is not None:
            sample.objects.append(self._table.count(values))
            sample.object_classes.update(self._table.class_names(values, self._names))

    def _add_picture(
        self, content: bytes, feature: Feature, values: Mapping[str, Any], classes: Sequence[str], sample: SplitSample
    ) -> int | None:
        """Add a picture, encoded, of bare pixels or a label map, with its annotations; return its outline."""
        maps = [] if feature.is_label_map else self._maps
        is_annotated = bool(maps) or self._table is not None or self._captions is not None
        name = classes[0] if classes else ""
        limit = _ANNOTATED_PICTURES if is_annotated else _PICTURES
        most_of_class = min(_PICTURES_A_CLASS, limit // self._num_classes or 1) if classes else _PICTURES // 4
        side = _ANNOTATED_SIDE if is_annotated else _SIDE
        try:
            picture = open_picture(content, feature)
            sample.sizes.append((picture.height, picture.width))
            # JPEGs are decoded at a fraction of their size.
            picture.draft("RGB", (2 * side, 2 * side))
            plain = picture.convert("L" if picture.mode in ("1", "L", "I;16") else "RGB")
            if len(sample.pictures.get(name, [])) < most_of_class and sum(map(len, sample.pictures.values())) < limit:
                small = thumbnail(plain, side)
                coloured = [colour_map(label_map, values[label_map.name][0]) for label_map in maps]
                overlays = [label_map.resize(small.size, Image.Resampling.NEAREST) for label_map in coloured]
                shown = self._make_picture(values, small, overlays, classes)
                sample.pictures.setdefault(name, []).append(shown)
            return outline(plain)
        except _BROKEN:
            sample.unreadable += 1
            return None

    def _make_picture(
        self, values: Mapping[str, Any], small: Image.Image, maps: Sequence[Image.Image], classes: Sequence[str]
    ) -> SamplePicture:
        boxes, names = [], list[str]()
        if self._table is not None:
            boxes, names = self._table.boxes(values), self._table.class_names(values, self._names)
        captions = [] if self._captions is None else values.get(self._captions.name, [])
        return SamplePicture(
            encode_png(small),
            *small.size,
            maps=tuple(map(encode_png, maps)),
            objects=tuple(zip(names or [""] * len(boxes), boxes, strict=True)),
            captions=tuple(caption.decode("utf-8", "replace") for caption in captions),
            classes=tuple(classes),
        )

    def _add_tokens(self, values: Mapping[str, Any], classes: Sequence[str], sample: SplitSample) -> tuple[bytes, bool]:
        sides, content = {}, b""
        for column in self._texts:
            name = column.feature.name
            ids, count = column.ids(values)
            sample.places += len(ids)
            sample.lengths.setdefault(name, []).append(count)
            sample.tokens.update(ids[:count].tolist())
            sides[name] = column.documents(values, self._eos_id)
            content += ids.tobytes()
        _add_text(join_sides(sides), classes, sample)
        return _digest(content), False

    def _add_strings(
        self, values: Mapping[str, Any], classes: Sequence[str], sample: SplitSample
    ) -> tuple[bytes, bool]:
        texts = {column.feature.name: column.text(values) for column in self._texts}
        for name, text in texts.items():
            sample.lengths.setdefault(name, []).append(len(text))
        _add_text(join_sides({name: [[SamplePart(text)]] for name, text in texts.items()}), classes, sample)
        content = "\0".join(texts.values())
        folded = _digest(" ".join(content.casefold().split()).encode())
        is_near = folded in self._folded
        self._folded.add(folded)
        return _digest(content.encode()), is_near


def _add_text(text: Text, classes: Sequence[str], sample: SplitSample) -> None:
    name = classes[0] if classes else ""
    shown_texts = sample.texts.get(name, [])
    limit = _TEXTS_A_CLASS if classes else _TEXTS
    # With many classes, one text each shows more than three of a few.
    if len(shown_texts) < limit and (len(sample.texts) < _TEXTS or shown_texts):
        sample.texts.setdefault(name, []).append(ClassedText(text, tuple(classes)))


def _digest(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=16).digest()

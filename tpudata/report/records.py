"""Statistics of a report, collected from the records of a split."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from PIL import Image

from tpudata.errors import TpudataError
from tpudata.format import Dataset, Feature
from tpudata.format.example.decode import decode_example
from tpudata.format.manifest.annotation_features import Box, caption_feature, object_tables
from tpudata.format.manifest.model_features import label_feature
from tpudata.format.verification.record_check import RecordCheck
from tpudata.report.outline import Outlines, compute_outline
from tpudata.report.pictures import colour_label_map, encode_png, has_showable_pixels, make_thumbnail, open_picture
from tpudata.report.split_sample import ClassedText, SamplePart, SamplePicture, SplitSample, Text
from tpudata.report.texts import find_text_columns, join_sides

# Maximum numbers of pictures that are shown: of a class, of a dataset without classes, and in all. Then of texts: of a class, and
# of a dataset without classes; and the maximum number of classes whose texts are shown.
_MAX_PICTURES_A_CLASS, _MAX_PICTURES_WITHOUT_CLASSES, _MAX_PICTURES = 6, 30, 120
_MAX_TEXTS_A_CLASS, _MAX_TEXTS, _MAX_TEXT_CLASSES = 3, 12, 12
# Maximum height and width of a picture in pixels.
_SIDE = 96
# Pictures with annotations are larger, and fewer.
_ANNOTATED_SIDE, _MAX_ANNOTATED_PICTURES = 192, 24
# Errors that a damaged picture raises.
_PICTURE_ERRORS = (OSError, ValueError, SyntaxError, EOFError, Image.DecompressionBombError, TpudataError)


class ContentMatch(NamedTuple):
    """Facts about a record that tell whether it is a duplicate.

    Attributes:
        digest: digest of the picture, the text or the tokens of a record; without them, of the whole record.
        is_near: whether an earlier record of the split has nearly the same picture or text.
    """

    digest: bytes
    is_near: bool = False


class SampleBuilder:
    """Adds records of one split to the split's statistics.

    Args:
        dataset: the dataset.
        sample: the statistics, which `add` changes.
    """

    def __init__(self, dataset: Dataset, sample: SplitSample) -> None:
        self._sample = sample
        self._outlines = Outlines()
        # Digests of the texts so far, without case and spaces.
        self._folded_digests: set[bytes] = set()
        manifest = dataset.manifest
        features = {feature.name: feature for feature in manifest.features}
        self._class_names = dataset.labels() or ()
        self._object_table = next(iter(object_tables(manifest.features)), None)
        object_features = () if self._object_table is None else self._object_table.columns
        # The manifest gives no number of classes for a list of labels, so such a label is found by its name.
        self._label_feature = next(
            (f for f in features.values() if f.num_classes is not None and f not in object_features), None
        ) or label_feature(manifest)
        num_classes = None if self._label_feature is None else self._label_feature.num_classes
        # At least 1, since it divides the number of pictures.
        self._num_classes = num_classes or len(self._class_names) or 1
        self._caption_feature = caption_feature(manifest.features)
        image = next((f for f in features.values() if f.encoding == "image"), None)
        pixels = next((f for f in features.values() if f.encoding == "raw" and has_showable_pixels(f)), None)
        label_maps = [feature for feature in features.values() if feature.is_label_map]
        # The picture that is shown, and the label maps that are laid over it.
        self._picture_feature = image or pixels or next(iter(label_maps), None)
        self._overlay_features = label_maps if image or pixels else []
        self._is_annotated = (
            bool(self._overlay_features) or self._object_table is not None or self._caption_feature is not None
        )
        # If records have a picture, only the picture is shown.
        self._text_columns = () if self._picture_feature is not None else find_text_columns(manifest)
        tokenizer = manifest.options.get("tokenizer")
        self._eos_id = tokenizer.get("eos_id") if isinstance(tokenizer, dict) else None
        used_object_features: tuple[Feature | None, ...] = ()
        if self._object_table is not None:
            used_object_features = (
                *self._object_table.box_columns,
                self._object_table.label,
                self._object_table.class_text,
            )
        # Only the values of these features are read, so only these features are checked.
        used_features = (
            self._label_feature,
            image,
            pixels,
            self._caption_feature,
            *label_maps,
            *used_object_features,
            *(feature for column in self._text_columns for feature in column.features),
        )
        self._used_features = {feature.name: feature for feature in used_features if feature is not None}
        self._check = RecordCheck(dataclasses.replace(manifest, features=tuple(self._used_features.values())))

    def add(self, data: bytes) -> ContentMatch:
        """Add a serialized record to the statistics; return the facts that tell whether it is a duplicate."""
        example = decode_example(data)
        values: Mapping[str, Any] = {name: example[name] for name in self._used_features if name in example}
        self._sample.record_bytes.append(len(data))
        if any(self._check.find_problems(values)):
            self._sample.misfit_count += 1
            return ContentMatch(_digest(data))
        classes = self._name_classes(values)
        self._sample.classes.update(classes)
        if self._picture_feature is not None:
            # The check has made sure that it is one value.
            (content,) = values[self._picture_feature.name]
            self._count_objects(values)
            outline = self._add_picture(content, self._picture_feature, values, classes)
            is_near = outline is not None and self._outlines.compare_and_add(outline)
            return ContentMatch(_digest(content), is_near)
        if not self._text_columns:
            return ContentMatch(_digest(data))
        # All columns hold token ids, or all hold text.
        return (
            self._add_tokens(values, classes)
            if self._text_columns[0].holds_token_ids
            else self._add_strings(values, classes)
        )

    def _name_classes(self, values: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the names of a record's classes, or its labels in digits if classes have no names."""
        if self._label_feature is None or self._label_feature.kind != "int64":
            return ()
        labels = [int(value) for value in values.get(self._label_feature.name, [])]
        if not self._class_names:
            return tuple(map(str, labels))
        indices = [label - self._label_feature.label_offset for label in labels]
        # A label without a name is omitted.
        return tuple(self._class_names[index] for index in indices if 0 <= index < len(self._class_names))

    def _count_objects(self, values: Mapping[str, Any]) -> None:
        """Add the number of a record's objects and their classes to the statistics, if the dataset has objects."""
        if self._object_table is not None:
            self._sample.object_counts.append(self._object_table.count(values))
            self._sample.object_classes.update(self._object_table.class_names(values, self._class_names))

    def _add_picture(
        self, content: bytes, feature: Feature, values: Mapping[str, Any], classes: Sequence[str]
    ) -> int | None:
        """Add a picture with its annotations, and return its outline; None if it is damaged or nearly plain.

        Args:
            content: the picture: encoded, bare pixels or a label map.
            feature: feature of the picture.
            values: all values of the record.
            classes: names of its classes.
        """
        side = _ANNOTATED_SIDE if self._is_annotated else _SIDE
        try:
            picture = open_picture(content, feature)
            self._sample.sizes.append((picture.height, picture.width))
            # `draft` lets Pillow decode a JPEG at a fraction of its size; other formats ignore it.
            picture.draft("RGB", (2 * side, 2 * side))
            decoded = picture.convert("L" if picture.mode in ("1", "L", "I;16") else "RGB")
            if self._has_room(classes):
                thumbnail = make_thumbnail(decoded, side)
                full_maps = [colour_label_map(values[overlay.name][0], overlay) for overlay in self._overlay_features]
                maps = [full_map.resize(thumbnail.size, Image.Resampling.NEAREST) for full_map in full_maps]
                sample_picture = self._make_picture(values, thumbnail, maps, classes)
                # The page groups pictures by the first class of their record.
                group = classes[0] if classes else ""
                self._sample.pictures.setdefault(group, []).append(sample_picture)
            return compute_outline(decoded)
        except _PICTURE_ERRORS:
            self._sample.unreadable_count += 1
            return None

    def _has_room(self, classes: Sequence[str]) -> bool:
        """Return whether a further picture of a record with these classes is shown; it counts for the first class."""
        max_pictures = _MAX_ANNOTATED_PICTURES if self._is_annotated else _MAX_PICTURES
        max_of_class = _MAX_PICTURES_WITHOUT_CLASSES
        if classes:
            # Fewer for each of many classes, so that more classes are shown.
            max_of_class = min(_MAX_PICTURES_A_CLASS, max(1, max_pictures // self._num_classes))
        pictures = self._sample.pictures
        pictures_of_class = pictures.get(classes[0] if classes else "", [])
        return len(pictures_of_class) < max_of_class and sum(map(len, pictures.values())) < max_pictures

    def _make_picture(
        self, values: Mapping[str, Any], thumbnail: Image.Image, maps: Sequence[Image.Image], classes: Sequence[str]
    ) -> SamplePicture:
        """Return a picture of the report with its annotations.

        Args:
            values: all values of the record.
            thumbnail: the picture as a thumbnail.
            maps: label maps in colours, of the size of the thumbnail.
            classes: names of the record's classes.
        """
        boxes: list[Box] = []
        names: list[str] = []
        if self._object_table is not None:
            boxes, names = self._object_table.boxes(values), self._object_table.class_names(values, self._class_names)
        captions = [] if self._caption_feature is None else values.get(self._caption_feature.name, [])
        # Without classes, `class_names` returns no names.
        return SamplePicture(
            encode_png(thumbnail),
            *thumbnail.size,
            maps=tuple(map(encode_png, maps)),
            objects=tuple(zip(names or [""] * len(boxes), boxes, strict=True)),
            captions=tuple(caption.decode("utf-8", "replace") for caption in captions),
            classes=tuple(classes),
        )

    def _add_tokens(self, values: Mapping[str, Any], classes: Sequence[str]) -> ContentMatch:
        """Add the rows of token ids of a record to the statistics; return their digest, without a search for near-duplicates.

        Args:
            values: values of the record's features.
            classes: names of its classes.
        """
        documents_by_side = {}
        content = b""
        for column in self._text_columns:
            name = column.feature.name
            # Padding follows the first `count` ids.
            ids, count = column.read_ids(values)
            self._sample.token_position_count += len(ids)
            self._sample.lengths.setdefault(name, []).append(count)
            self._sample.tokens.update(ids[:count].tolist())
            documents_by_side[name] = column.split_documents(values, self._eos_id)
            content += ids.tobytes()
        self._add_text(join_sides(documents_by_side), classes)
        return ContentMatch(_digest(content))

    def _add_strings(self, values: Mapping[str, Any], classes: Sequence[str]) -> ContentMatch:
        """Add the texts of a record to the statistics; return their digest, and whether earlier texts are nearly the same."""
        texts = {column.feature.name: column.read_text(values) for column in self._text_columns}
        for name, text in texts.items():
            self._sample.lengths.setdefault(name, []).append(len(text))
        self._add_text(join_sides({name: [[SamplePart(text)]] for name, text in texts.items()}), classes)
        content = "\0".join(texts.values())
        # Nearly the same: apart from case and spaces.
        folded_digest = _digest(" ".join(content.casefold().split()).encode())
        is_near = folded_digest in self._folded_digests
        self._folded_digests.add(folded_digest)
        return ContentMatch(_digest(content.encode()), is_near)

    def _add_text(self, text: Text, classes: Sequence[str]) -> None:
        """Add a text to the texts that are shown, if there is room for it."""
        texts_by_class = self._sample.texts
        class_name = classes[0] if classes else ""
        max_of_class = _MAX_TEXTS_A_CLASS if classes else _MAX_TEXTS
        has_room = len(texts_by_class.get(class_name, [])) < max_of_class
        # No further class is shown once there are `_MAX_TEXT_CLASSES`.
        if has_room and (class_name in texts_by_class or len(texts_by_class) < _MAX_TEXT_CLASSES):
            texts_by_class.setdefault(class_name, []).append(ClassedText(text, tuple(classes)))


def _digest(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=16).digest()

"""The features of annotations, with the names of TensorFlow's object detection and tf-models readers.

    image/object/bbox/ymin, xmin, ymax, xmax    float lists: edges, as fractions of the sides
    image/object/class/label, text              number and name of each object's class
    image/object/is_crowd, difficult            0 or 1
    image/object/area                           pixels of the stored picture
    image/object/mask                           PNGs as large as the stored picture, 1 inside and 0 outside
    image/object/keypoint/x, y, visibility      [objects, keypoints]: fractions of the sides; 0, 0, 0 for an unplaced point
    image/caption                               texts
    image/segmentation/class/encoded            label map
    image/target/encoded                        the second image of a pair
    image/source_id                             text: id of the picture in the file
    image/class/label, text                     number and name of the whole picture's class

The lists image/object/* have a value for each object, in the order of the file. A dataset has only features that some picture has.
Source of the names: tensorflow/models, research/object_detection/data_decoders/tf_example_decoder.py and
official/vision/dataloaders/.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from beam_jobs.annotations import contents as kinds
from beam_jobs.annotations.contents import Contents
from beam_jobs.annotations.segmentation import load_pycocotools
from beam_jobs.image_records.layouts import TARGET
from beam_jobs.references.labels import Labels
from tpudata.format import Feature

SOURCE_ID = Feature("image/source_id", "bytes", "string", encoding="utf8")
# Classes of a label map of uint8, in which 255 stands for pixels in no segment.
_MAX_SMALL_CLASSES = 255


@dataclasses.dataclass(frozen=True)
class AnnotationSchema:
    """The features of the annotations of a dataset; pickled to the workers.

    Attributes:
        kinds: kinds of annotations, see `beam_jobs.annotations.contents`; sorted, so that their digest is stable.
        keypoints: number of keypoints of each object; 0 if objects have none.
        object_labels: classes of objects.
        class_labels: classes of pictures.
        several_classes: whether a picture may have several classes, or none.
        label_offset: label of the first class.
        further: features of extra values, sorted by name.
        map_dtype: dtype of label maps: "uint16" for files of 16 bits, and "uint8" for other files; maps of segments have the
            smallest that holds the classes.
        is_upright: whether the upright picture was annotated if its size does not tell; see `frame`.

    Raises:
        MissingExtraError: there are polygons, and pycocotools, which draws them, is not installed.
    """

    kinds: tuple[str, ...]
    keypoints: int = 0
    object_labels: Labels = dataclasses.field(default_factory=lambda: Labels(()))
    class_labels: Labels = dataclasses.field(default_factory=lambda: Labels(()))
    several_classes: bool = False
    label_offset: int = 0
    further: tuple[Feature, ...] = ()
    map_dtype: str = "uint8"
    is_upright: bool = False

    def __post_init__(self) -> None:
        """Choose the dtype of maps, and check that polygons can be drawn."""
        if kinds.POLYGONS in self.kinds:
            load_pycocotools()
        # Maps drawn from segments hold the labels of objects, so the number of classes decides; files of maps keep their bits.
        if kinds.SEGMENT_MAPS in self.kinds and kinds.MAPS not in self.kinds:
            needs_uint16 = len(self.object_labels.names) + self.label_offset > _MAX_SMALL_CLASSES
            object.__setattr__(self, "map_dtype", "uint16" if needs_uint16 else "uint8")
        elif kinds.WIDE_MAPS in self.kinds:
            object.__setattr__(self, "map_dtype", "uint16")

    @classmethod
    def from_contents(cls, contents: Contents, labels: Labels | None = None, **options: Any) -> AnnotationSchema:
        """Return the schema of a set of annotations.

        Args:
            contents: contents of the annotations.
            labels: the classes of pictures or, if pictures have none, of objects; None takes the classes of `contents`.
            **options: other attributes, and replacements for those that follow from `contents`.
        """
        pictures_have_classes = bool(contents.names.pictures or contents.classes)
        object_labels, class_labels = (None, labels) if pictures_have_classes else (labels, None)
        attributes: dict[str, Any] = {
            "kinds": tuple(sorted(contents.kinds)),
            "keypoints": contents.keypoint_count,
            "object_labels": object_labels or Labels(contents.object_names),
            "class_labels": class_labels or Labels(contents.class_names),
            "several_classes": contents.several_classes,
            "further": contents.value_features,
        }
        return cls(**attributes | options)

    @property
    def labels(self) -> Labels:
        """The classes of the dataset: of pictures, or of objects if pictures have none."""
        if self.class_labels.names or kinds.OBJECT_CLASSES not in self.kinds:
            return self.class_labels
        return self.object_labels

    @property
    def has_unlisted_classes(self) -> bool:
        """Whether objects have classes that labels.txt does not list, since it lists those of pictures."""
        return bool(self.class_labels.names) and kinds.OBJECT_CLASSES in self.kinds

    def replace_labels(self, labels: Labels) -> AnnotationSchema:
        """Return the schema with different classes: of pictures, or of objects if pictures have none."""
        if self.class_labels.names:
            return dataclasses.replace(self, class_labels=labels)
        return dataclasses.replace(self, object_labels=labels)

    @property
    def object_features(self) -> tuple[Feature, ...]:
        """Features of objects; empty without objects."""
        if kinds.OBJECTS not in self.kinds:
            return ()
        features = [_make_floats(f"image/object/bbox/{edge}") for edge in ("ymin", "xmin", "ymax", "xmax")]
        if kinds.OBJECT_CLASSES in self.kinds:
            count = len(self.object_labels.names)
            features.append(_make_ints("image/object/class/label", num_classes=count, label_offset=self.label_offset))
            features.append(_make_texts("image/object/class/text"))
        if kinds.CROWDS in self.kinds:
            features.append(_make_ints("image/object/is_crowd"))
        if kinds.DIFFICULT in self.kinds:
            features.append(_make_ints("image/object/difficult"))
        if kinds.AREAS in self.kinds:
            features.append(_make_floats("image/object/area"))
        if kinds.MASKS in self.kinds:
            features.append(Feature("image/object/mask", "bytes", "string", (None,)))
        if self.keypoints:
            shape = (None, self.keypoints)
            features += [Feature(f"image/object/keypoint/{axis}", "float", "float32", shape) for axis in "xy"]
            features.append(Feature("image/object/keypoint/visibility", "int64", "int64", shape))
        return tuple(features)

    @property
    def class_features(self) -> tuple[Feature, ...]:
        """Features of the classes of pictures; empty without classes."""
        if not self.class_labels.names:
            return ()
        shape: tuple[int | None, ...] = (None,) if self.several_classes else ()
        # A list of labels has no number of classes, as in datasets without annotations.
        count, offset = (None, 0) if self.several_classes else (len(self.class_labels.names), self.label_offset)
        return (
            Feature("image/class/label", "int64", "int64", shape, num_classes=count, label_offset=offset),
            Feature("image/class/text", "bytes", "string", shape, encoding="utf8"),
        )

    @property
    def map_feature(self) -> Feature | None:
        """Feature of the label map, or None."""
        if not {kinds.MAPS, kinds.SEGMENT_MAPS} & {*self.kinds}:
            return None
        shape = (None, None, 1)
        return Feature("image/segmentation/class/encoded", "bytes", self.map_dtype, shape, encoding="label_map")

    @property
    def has_targets(self) -> bool:
        """Whether pictures have a second image."""
        return kinds.TARGETS in self.kinds

    @property
    def features(self) -> tuple[Feature, ...]:
        """All features but those of `class_features`, which a layout puts among its own features."""
        captions = (_make_texts("image/caption"),) if kinds.CAPTIONS in self.kinds else ()
        maps = () if self.map_feature is None else (self.map_feature,)
        targets = (TARGET,) if self.has_targets else ()
        ids = (SOURCE_ID,) if kinds.SOURCE_IDS in self.kinds else ()
        return (*self.object_features, *captions, *maps, *targets, *ids, *self.further)


def _make_floats(name: str) -> Feature:
    return Feature(name, "float", "float32", (None,))


def _make_ints(name: str, *, num_classes: int | None = None, label_offset: int = 0) -> Feature:
    return Feature(name, "int64", "int64", (None,), num_classes=num_classes, label_offset=label_offset)


def _make_texts(name: str) -> Feature:
    return Feature(name, "bytes", "string", (None,), encoding="utf8")

"""Records of annotations: the features that a set of annotations has, and the values of each picture."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from pycocotools.coco import COCO

from beam_jobs.annotations.annotation import ImageAnnotation, MapFile, ObjectAnnotation, Place, pack_keypoints
from beam_jobs.annotations.contents import Contents
from beam_jobs.annotations.form import ListedNames
from beam_jobs.annotations.segmentation import Polygons, RunLengths, SegmentId, pack_counts, pack_polygon
from beam_jobs.image_records.annotated.frame import Frame
from beam_jobs.image_records.annotated.schema import AnnotationSchema
from beam_jobs.image_records.annotated.values import values_of
from beam_jobs.references.labels import Labels
from tests.beam_jobs.annotations.reading import read
from tests.helpers.label_maps import PALETTE, png_of
from tpudata.errors import BadRecordError, MissingExtraError, SourceError
from tpudata.format import decode_example, encode_example

# Of pycocotools 2.0.11 with NumPy 2.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

PLACE = Place("a.json", offset=7)
FRAME = Frame(100, 60, 1, 100, 60)


def contents_of(*annotations: ImageAnnotation, **names: tuple[str, ...]) -> Contents:
    contents = Contents(ListedNames(**names))
    for annotation in annotations:
        contents.add(annotation)
    return contents


def picture(*objects: ObjectAnnotation, **more: Any) -> ImageAnnotation:
    return ImageAnnotation("a.jpg", PLACE, 100, 60, objects=objects, **more)


def record(
    annotation: ImageAnnotation, frame: Frame = FRAME, data: bytes | None = None, **options: Any
) -> dict[str, Any]:
    """The values of a picture, whose set of annotations has no other."""
    schema = AnnotationSchema.of(contents_of(annotation), **options)
    values = values_of(schema, annotation, frame, data)
    assert set(values) == {feature.name for feature in (*schema.features, *schema.class_features)}
    # The codec takes them, and gives the same lists.
    return {name: list(found) for name, found in decode_example(encode_example(values)).items()}


def pixels(png: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(png)))


DOG = ObjectAnnotation((6, 10, 30, 60), "dog", is_crowd=False, area=900.0)
CAT = ObjectAnnotation((0, 50, 60, 100), "cat", is_crowd=True, area=2_000.0)


def test_objects_are_lists_in_the_order_of_the_file() -> None:
    assert record(picture(DOG, CAT, DOG), label_offset=1) == {
        "image/object/bbox/ymin": pytest.approx([0.1, 0, 0.1]),
        "image/object/bbox/xmin": pytest.approx([0.1, 0.5, 0.1]),
        "image/object/bbox/ymax": pytest.approx([0.5, 1, 0.5]),
        "image/object/bbox/xmax": pytest.approx([0.6, 1, 0.6]),
        "image/object/class/label": [2, 1, 2],
        "image/object/class/text": [b"dog", b"cat", b"dog"],
        "image/object/is_crowd": [0, 1, 0],
        "image/object/area": [900, 2000, 900],
    }


def test_a_picture_without_objects_has_empty_lists() -> None:
    schema = AnnotationSchema.of(contents_of(picture(DOG)))
    values = values_of(schema, picture(), FRAME)
    assert values
    assert all(len(found) == 0 for found in values.values())
    assert {found.dtype.kind for found in values.values()} == {"f", "i", "S"}


def test_features_are_typed() -> None:
    item = DOG._replace(is_difficult=True, keypoints=pack_keypoints([1, 2, 2]), segmentation=SegmentId(3))
    annotation = picture(
        item,
        captions=("x",),
        classes=("day",),
        map_file=MapFile("a.png"),
        values=(("size", 3), ("tags", ["a"]), ("score", 1.5)),
    )
    contents = contents_of(annotation, objects=("cat", "dog"), pictures=("day", "night"))
    schema = AnnotationSchema.of(contents, label_offset=1, map_dtype="uint16")
    found = {
        item.name: (item.kind, item.dtype, item.shape, item.encoding, item.num_classes, item.label_offset)
        for item in (*schema.features, *schema.class_features)
    }
    floats, ints = ("float", "float32", (None,), None, None, 0), ("int64", "int64", (None,), None, None, 0)
    texts = ("bytes", "string", (None,), "utf8", None, 0)
    assert found == {
        **{f"image/object/bbox/{edge}": floats for edge in ("ymin", "xmin", "ymax", "xmax")},
        "image/object/class/label": ("int64", "int64", (None,), None, 2, 1),
        "image/object/class/text": texts,
        "image/object/is_crowd": ints,
        "image/object/difficult": ints,
        "image/object/area": floats,
        "image/object/mask": ("bytes", "string", (None,), None, None, 0),
        "image/object/keypoint/x": ("float", "float32", (None, 1), None, None, 0),
        "image/object/keypoint/y": ("float", "float32", (None, 1), None, None, 0),
        "image/object/keypoint/visibility": ("int64", "int64", (None, 1), None, None, 0),
        "image/caption": texts,
        "image/segmentation/class/encoded": ("bytes", "uint16", (None, None, 1), "label_map", None, 0),
        "score": ("float", "float32", (), None, None, 0),
        "size": ("int64", "int64", (), None, None, 0),
        "tags": texts,
        "image/class/label": ("int64", "int64", (), None, 2, 1),
        "image/class/text": ("bytes", "string", (), "utf8", None, 0),
    }
    assert pickle.loads(pickle.dumps(schema)) == schema


def test_masks_of_coco_are_those_of_pycocotools(tmp_path: Path) -> None:
    polygon = [[10.5, 6, 60, 6, 60, 30.25, 10, 30], [70, 40, 90, 40, 80, 55]]
    rows = [
        {"id": 1, "bbox": [10, 6, 80, 49], "segmentation": polygon, "area": 5.0, "iscrowd": 0},
        {
            "id": 2,
            "bbox": [0, 0, 100, 50],
            "segmentation": {"size": [60, 100], "counts": [0, 50, 5_950]},
            "area": 1,
            "iscrowd": 1,
        },
        {"id": 3, "bbox": [1, 1, 5, 5], "segmentation": [], "area": 1, "iscrowd": 0},
    ]
    content = {
        "images": [{"id": 4, "file_name": "a.jpg", "width": 100, "height": 60}],
        "annotations": [row | {"image_id": 4, "category_id": 1} for row in rows],
        "categories": [{"id": 1, "name": "dog"}],
    }
    path = tmp_path / "a.json"
    path.write_text(json.dumps(content))
    with contextlib.redirect_stdout(io.StringIO()):
        coco = COCO(str(path))
    expected = [coco.annToMask(coco.anns[number]) for number in (1, 2)]
    (annotation,) = read(path).pictures.values()
    masks = record(annotation)["image/object/mask"]
    for png, mask in zip(masks, expected, strict=False):
        np.testing.assert_array_equal(pixels(png), mask)
    assert pixels(masks[2]).shape == (60, 100)
    assert not pixels(masks[2]).any()
    # Turned by 90 degrees and shrunk to a half, the pixels are those of the turned mask.
    turned = record(annotation, Frame(100, 60, 6, 30, 50))["image/object/mask"]
    for png, mask in zip(turned, expected, strict=False):
        np.testing.assert_array_equal(pixels(png), np.rot90(mask[1::2, 1::2], -1))


def test_areas_and_boxes_follow_a_resize() -> None:
    values = record(picture(DOG, CAT._replace(area=None)), Frame(100, 60, 6, 30, 50))
    assert values["image/object/area"] == pytest.approx([225, 750])
    edges = [values[f"image/object/bbox/{edge}"][0] for edge in ("ymin", "xmin", "ymax", "xmax")]
    assert edges == pytest.approx([0.1, 0.5, 0.6, 0.9])


def test_stores_keypoints_by_their_names() -> None:
    item = DOG._replace(keypoints=pack_keypoints([10, 6, 2, 0, 0, 0, 100, 60, 1]))
    values = record(picture(item, CAT), Frame(100, 60, 2, 100, 60))
    assert values["image/object/keypoint/x"] == pytest.approx([0.9, 0, 0, 0, 0, 0])
    assert values["image/object/keypoint/y"] == pytest.approx([0.1, 0, 1, 0, 0, 0])
    assert values["image/object/keypoint/visibility"] == [2, 0, 1, 0, 0, 0]


def test_stores_captions_classes_and_values() -> None:
    annotation = picture(captions=("ein Hündchen", "two"), classes=("dog",), values=(("n", 3), ("x", 1), ("t", ["ä"])))
    other = picture(classes=("cat",), values=(("n", 4), ("x", 0.5), ("t", [])))
    schema = AnnotationSchema.of(contents_of(annotation, other))
    assert values_of(schema, annotation, FRAME) == {
        "image/caption": ["ein Hündchen".encode(), b"two"],
        "image/class/label": 1,
        "image/class/text": b"dog",
        "n": 3,
        "x": 1.0,
        "t": ["ä".encode()],
    }
    assert values_of(schema, other, FRAME)["image/caption"].tolist() == []


def test_several_classes_are_a_list() -> None:
    contents = contents_of(picture(classes=("a", "b")), picture(classes=("a",)), pictures=("z", "a", "b"))
    schema = AnnotationSchema.of(contents)
    assert values_of(schema, picture(classes=("b", "z")), FRAME)["image/class/label"] == [2, 0]
    assert values_of(schema, picture(), FRAME)["image/class/label"].tolist() == []


MAP = np.arange(6_000).reshape(60, 100) % 7


def label_map(annotation: ImageAnnotation, data: bytes, frame: Frame = FRAME, **options: Any) -> np.ndarray:
    (stored,) = record(annotation, frame, data, **options)["image/segmentation/class/encoded"]
    return pixels(stored)


def test_label_maps_keep_their_bytes_and_their_values() -> None:
    annotation = ImageAnnotation("a", PLACE, map_file=MapFile("a.png"))
    data = png_of(MAP)
    assert record(annotation, FRAME, data)["image/segmentation/class/encoded"] == [data]
    np.testing.assert_array_equal(label_map(annotation, png_of(MAP, 8, PALETTE)), MAP)
    np.testing.assert_array_equal(label_map(annotation, png_of(MAP, 4)), MAP)
    np.testing.assert_array_equal(label_map(annotation, png_of(MAP * 100, 16), map_dtype="uint16"), MAP * 100)


def test_label_maps_turn_and_shrink() -> None:
    annotation = ImageAnnotation("a", PLACE, map_file=MapFile("a.png"))
    found = label_map(annotation, png_of(MAP), Frame(100, 60, 8, 30, 50))
    np.testing.assert_array_equal(found, np.rot90(MAP[1::2, 1::2]))
    # A map of the upright picture.
    upright = MAP.reshape(100, 60)
    np.testing.assert_array_equal(label_map(annotation, png_of(upright), Frame(100, 60, 8, 60, 100)), upright)


def segments_png(ids: np.ndarray) -> bytes:
    out = io.BytesIO()
    colours = np.stack([ids % 256, ids // 256 % 256, ids // 65_536], -1).astype(np.uint8)
    Image.fromarray(colours).save(out, "PNG")
    return out.getvalue()


def test_panoptic_segments_are_masks_and_a_map() -> None:
    ids = np.zeros((60, 100), np.uint32)
    ids[:30, :50], ids[30:, 50:] = 70_000, 3
    objects = (
        ObjectAnnotation((0, 0, 30, 50), "sky", segmentation=SegmentId(70_000)),
        ObjectAnnotation((30, 50, 60, 100), "dog", segmentation=SegmentId(3)),
    )
    annotation = picture(*objects, map_file=MapFile("a.png", holds_segments=True))
    values = record(annotation, FRAME, segments_png(ids))
    first, second = map(pixels, values["image/object/mask"])
    np.testing.assert_array_equal(first, ids == 70_000)
    np.testing.assert_array_equal(second, ids == 3)
    expected = np.select([ids == 70_000, ids == 3], [1, 0], 255)
    np.testing.assert_array_equal(pixels(values["image/segmentation/class/encoded"][0]), expected)
    names = tuple(f"class {number}" for number in range(300))
    schema = AnnotationSchema.of(contents_of(annotation), object_labels=Labels(("dog", "sky", *names)))
    (png,) = [
        value for name, value in values_of(schema, annotation, FRAME, segments_png(ids)).items() if "encoded" in name
    ]
    np.testing.assert_array_equal(pixels(png), np.where(expected == 255, 65_535, expected))


@pytest.mark.parametrize(
    ("annotation", "data", "reason"),
    [
        (picture(DOG._replace(box=(0, 0, 70, 10))), None, "object 1 (dog): a box outside of its picture"),
        (picture(DOG, CAT._replace(box=(0, 0, 0, 10))), None, "object 2 (cat): a box without area"),
        (picture(DOG._replace(area=float("nan"))), None, "an area of nan"),
        (picture(DOG._replace(keypoints=pack_keypoints([1, 1, 3]))), None, "visibility 3"),
        (picture(DOG._replace(keypoints=pack_keypoints([1, 90, 2]))), None, "a keypoint outside of its picture"),
        (picture(DOG._replace(segmentation=RunLengths(6, 10, b"<"))), None, "a mask of 10 x 6 pixels"),
        (picture(DOG)._replace(width=60), None, "annotated as 60 x 60 pixels"),
        (picture(DOG._replace(class_name="\ud800")), None, "class name"),
        (picture(captions=("\ud800",)), None, "not UTF-8"),
        (picture(map_file=MapFile("a.png")), None, "no label map"),
        (picture(map_file=MapFile("a.png")), png_of(MAP[:50]), "annotated as 100 x 50 pixels"),
        (picture(map_file=MapFile("a.png")), png_of(MAP * 100, 16), "does not fit uint8"),
        (picture(map_file=MapFile("a.png")), png_of(MAP)[:-30], "does not decode"),
        (picture(map_file=MapFile("a.png")), segments_png(MAP), "a PNG of colours"),
        (picture(map_file=MapFile("a.png", holds_segments=True)), png_of(MAP), "no PNG of colours"),
        (picture(map_file=MapFile("a.png", holds_segments=True)), segments_png(MAP[:50]), "100 x 50 pixels"),
        (picture(map_file=MapFile("a.png", holds_segments=True)), segments_png(MAP)[:-30], "a.jpg"),
        (
            picture(DOG._replace(segmentation=SegmentId(99)), map_file=MapFile("a.png", holds_segments=True)),
            segments_png(MAP),
            "segment 99 has no pixel",
        ),
    ],
)
def test_rejects_what_does_not_fit_the_picture(annotation: ImageAnnotation, data: bytes | None, reason: str) -> None:
    with pytest.raises(SourceError) as caught:
        record(annotation, FRAME, data)
    assert reason in str(caught.value)
    if isinstance(caught.value, BadRecordError):
        assert (caught.value.source, caught.value.offset) == ("a.json", 7)
        assert "'a.jpg'" in caught.value.reason


@pytest.mark.parametrize(
    ("annotation", "reason"),
    [
        (picture(DOG._replace(class_name="eel"), values=(("n", 1),), classes=("x",)), "unknown label: 'eel'"),
        (picture(DOG, values=(("n", 1),)), "not exactly one class: none"),
        (picture(DOG, values=(("n", 1),), classes=("y",)), "unknown label: 'y'"),
        (picture(DOG, classes=("x",)), "no int64 in 'n': None"),
        (picture(DOG, classes=("x",), values=(("n", 1.5),)), "no int64 in 'n': 1.5"),
        (picture(DOG, classes=("x",), values=(("n", [1]),)), "no int64 in 'n': [1]"),
    ],
)
def test_rejects_what_does_not_fit_the_schema(annotation: ImageAnnotation, reason: str) -> None:
    schema = AnnotationSchema.of(contents_of(picture(DOG, values=(("n", 1),), classes=("x",))))
    with pytest.raises(BadRecordError) as caught:
        values_of(schema, annotation, FRAME)
    assert reason in caught.value.reason


def test_polygons_need_their_extra_before_any_record(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pycocotools", None)
    with_runs = picture(DOG._replace(segmentation=RunLengths(60, 100, pack_counts([6_000]), is_text=False)))
    assert record(with_runs)["image/object/mask"]
    polygon = Polygons((pack_polygon([0, 0, 9, 0, 9, 9]),))
    with pytest.raises(MissingExtraError, match=r"\[annotations\]"):
        AnnotationSchema.of(contents_of(picture(DOG._replace(segmentation=polygon))))


def test_contents_of_parts_merge_in_any_order() -> None:
    item = DOG._replace(keypoints=pack_keypoints([1, 2, 2]))
    parts = [
        contents_of(picture(item), picture(classes=("b",), values=(("n", 1),)), objects=("dog", "cat")),
        contents_of(picture(captions=("x",), classes=("a",), values=(("n", 0.5), ("m", "t")))),
        contents_of(),
    ]
    merged = []
    for order in ((0, 1, 2), (2, 1, 0)):
        whole = Contents()
        for number in order:
            whole.merge(parts[number])
        merged.append(AnnotationSchema.of(whole))
    assert merged[0] == merged[1]
    assert dataclasses.asdict(merged[0])["object_labels"] == {"names": ("dog", "cat")}
    with pytest.raises(SourceError, match="different numbers of keypoints"):
        parts[0].merge(contents_of(picture(DOG._replace(keypoints=pack_keypoints([1, 2, 2] * 2)))))
    with pytest.raises(SourceError, match="different names of objects"):
        parts[0].merge(contents_of(objects=("cat", "dog")))

"""COCO JSON: instances, keypoints, captions and panoptic, next to pycocotools; and damaged files.

Tests of offsets, memory and files damaged at any byte read the form directly; a conversion would end at each such file. What
becomes of objects in a dataset is in tests/beam_jobs/image_records/annotated and test_annotations.py.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import itertools
import json
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pycocotools import mask as coco_mask
from pycocotools.coco import COCO

from beam_jobs.annotations.annotation import MapFile
from beam_jobs.annotations.find_form import find_form
from beam_jobs.annotations.form import ListedNames
from beam_jobs.annotations.segmentation import SegmentId
from beam_jobs.image_records.annotated.frame import Frame
from beam_jobs.image_records.annotated.schema import AnnotationSchema
from beam_jobs.image_records.annotated.values import list_annotation_values
from tests.beam_jobs.annotations.converting import convert_annotated
from tests.beam_jobs.annotations.reading import approximately, read, write_json, write_text
from tpudata.errors import BadRecordError, CorruptionError, SourceError

# Of pycocotools 2.0.11 with NumPy 2.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

HEIGHT, WIDTH = 40, 50


def run_lengths(*, is_text: bool) -> dict[str, Any]:
    mask = np.zeros((HEIGHT, WIDTH), np.uint8, order="F")
    mask[5:20, 10:30] = 1
    mask[8:12, 14:20] = 0
    if is_text:
        found = coco_mask.encode(mask)
        return {"size": found["size"], "counts": found["counts"].decode()}
    flat = mask.ravel(order="F")
    runs = [len(list(group)) for _, group in itertools.groupby(flat.tolist())]
    return {"size": [HEIGHT, WIDTH], "counts": runs if flat[0] == 0 else [0, *runs]}


def instances() -> dict[str, Any]:
    """A file as those of COCO 2017, whose classes and images are in no order."""
    images = [
        {"id": number, "file_name": f"{number:012d}.jpg", "height": HEIGHT, "width": WIDTH, "license": 3}
        for number in (9, 7, 8)
    ]
    polygon = [[2.5, 3.0, 20.25, 4.0, 18.0, 30.5], [30.0, 10.0, 45.0, 10.0, 45.0, 20.0, 30.0, 20.0]]
    annotations = [
        {"id": 1, "image_id": 7, "category_id": 18, "bbox": [2.5, 3, 42.5, 27.5], "area": 400.5, "iscrowd": 0},
        {"id": 2, "image_id": 9, "category_id": 1, "bbox": [10, 5, 20, 15], "area": 276, "iscrowd": 1},
        {"id": 3, "image_id": 7, "category_id": 1, "bbox": [10, 5, 20, 15], "area": 276.0, "iscrowd": 0},
    ]
    for row, segmentation in zip(
        annotations, (polygon, run_lengths(is_text=False), run_lengths(is_text=True)), strict=True
    ):
        row["segmentation"] = segmentation
    categories = [{"id": 18, "name": "dog", "supercategory": "animal"}, {"id": 1, "name": "person"}]
    return {
        "info": {"description": "a miniature", "nested": [{"images": [1, 2]}]},
        "licenses": [{"id": 3, "name": "none"}],
        "images": images,
        "annotations": annotations,
        "categories": categories,
    }


def oracle(path: Path) -> COCO:
    with contextlib.redirect_stdout(io.StringIO()):
        return COCO(str(path))


@pytest.mark.parametrize("order", list(itertools.permutations(["images", "annotations", "categories"])))
def test_reads_instances_as_pycocotools_does(tmp_path: Path, order: tuple[str, ...]) -> None:
    content = instances()
    path = write_json(tmp_path / "instances.json", {"info": content["info"], **{key: content[key] for key in order}})
    coco, found = oracle(path), read(path)
    assert found.errors == []
    assert sorted(found.pictures) == sorted(image["file_name"] for image in coco.imgs.values())
    for image in coco.imgs.values():
        picture = found.pictures[image["file_name"]]
        assert (picture.width, picture.height) == (image["width"], image["height"])
        expected = coco.loadAnns(coco.getAnnIds(imgIds=[image["id"]]))
        assert len(picture.objects) == len(expected)
        for item, row in zip(picture.objects, expected, strict=True):
            x, y, width, height = row["bbox"]
            assert item.box == approximately((y, x, y + height, x + width))
            assert (item.area, item.is_crowd) == (row["area"], bool(row["iscrowd"]))
            assert item.class_name == coco.cats[row["category_id"]]["name"]
            assert item.segmentation is not None
            np.testing.assert_array_equal(item.segmentation.draw_mask(HEIGHT, WIDTH, None), coco.annToMask(row))


def test_orders_classes_by_id(tmp_path: Path) -> None:
    found = read(write_json(tmp_path / "a.json", instances()))
    assert found.contents.object_names == ("person", "dog")


def test_merges_categories_with_the_same_name(tmp_path: Path) -> None:
    content = instances()
    content["categories"] = [{"id": 0, "name": "dog"}, {"id": 18, "name": "dog"}, {"id": 1, "name": "person"}]
    found = read(write_json(tmp_path / "a.json", content))
    assert found.contents.object_names == ("dog", "person")
    assert [item.class_name for item in found.pictures["000000000007.jpg"].objects] == ["dog", "person"]


def test_tells_long_category_ids_apart_that_begin_alike(tmp_path: Path) -> None:
    content = instances()
    ids = {1: "x" * 90 + "1", 18: "x" * 90 + "2"}
    names = {ids[row["id"]]: row["name"] for row in content["categories"]}
    content["categories"] = [row | {"id": ids[row["id"]]} for row in content["categories"]]
    content["annotations"] = [row | {"category_id": ids[row["category_id"]]} for row in content["annotations"]]
    found = read(write_json(tmp_path / "a.json", content))
    whole_numbers = read(write_json(tmp_path / "b.json", instances()))
    assert sorted(names.values()) == sorted(found.contents.object_names)
    for name, picture in whole_numbers.pictures.items():
        assert [item.class_name for item in found.pictures[name].objects] == [
            item.class_name for item in picture.objects
        ]
    content["annotations"][0]["category_id"] = "y" * 5000
    assert len(str(read(write_json(tmp_path / "c.json", content)).one_error())) < 400


def test_keeps_pictures_in_file_order(tmp_path: Path) -> None:
    found = read(write_json(tmp_path / "a.json", instances()))
    assert list(found.pictures) == ["000000000009.jpg", "000000000007.jpg", "000000000008.jpg"]
    assert found.pictures["000000000008.jpg"].objects == ()


@pytest.mark.parametrize("indent", [None, 1])
def test_error_offsets_count_bytes_of_non_ascii_text(tmp_path: Path, indent: int | None) -> None:
    content = instances()
    content["info"] = {"description": "ä€😀" * 100_000}
    content["images"][0]["file_name"] = 'train/größe "a" \\ 😀.jpg'
    content["annotations"][0]["category_id"] = 99
    text = json.dumps(content, ensure_ascii=False, indent=indent)
    found = read(write_text(tmp_path / "a.json", text))
    assert 'train/größe "a" \\ 😀.jpg' in found.pictures
    error = found.one_error()
    assert "unknown category_id 99" in str(error)
    assert error.offset is not None
    assert json.loads(text.encode()[error.offset :].decode().partition("}")[0] + "}")["id"] == 7


def test_reads_gzip_and_a_byte_order_mark(tmp_path: Path) -> None:
    data = b"\xef\xbb\xbf" + json.dumps(instances()).encode()
    (tmp_path / "plain.json").write_bytes(data)
    (tmp_path / "packed.json.gz").write_bytes(gzip.compress(data))
    plain = read(tmp_path / "plain.json").pictures
    packed = read(tmp_path / "packed.json.gz").pictures
    assert [picture.objects for picture in plain.values()] == [picture.objects for picture in packed.values()]
    assert data[plain["000000000009.jpg"].place.offset or 0 :].startswith(b'{"id": 9')


def test_rejects_a_truncated_gzip_file(tmp_path: Path) -> None:
    (tmp_path / "a.json.gz").write_bytes(gzip.compress(json.dumps(instances()).encode())[:-20])
    with pytest.raises(CorruptionError):
        read(tmp_path / "a.json.gz")


def test_reads_keypoints_with_their_visibility(tmp_path: Path) -> None:
    content = instances()
    content["categories"][1] |= {"keypoints": ["nose", "tail"], "skeleton": [[1, 2]]}
    content["annotations"][1]["keypoints"] = [11, 6, 2, 0, 0, 0]
    found = read(write_json(tmp_path / "a.json", content))
    (item,) = found.pictures["000000000009.jpg"].objects
    assert item.keypoint_array.tolist() == [[11, 6, 2], [0, 0, 0]]
    assert found.contents.names.keypoints == ("nose", "tail")
    assert found.contents.keypoint_count == 2


def test_reads_captions_of_a_picture(tmp_path: Path) -> None:
    content = {key: value for key, value in instances().items() if key != "categories"}
    content["annotations"] = [
        {"id": 5, "image_id": 7, "caption": "a dog"},
        {"id": 6, "image_id": 9, "caption": "ein Hündchen"},
        {"id": 7, "image_id": 7, "caption": "a dog, again"},
    ]
    names = [image["file_name"] for image in content["images"]]
    found = convert_annotated(tmp_path, {"captions.json": json.dumps(content)}, names, "captions.json")
    assert [found.texts(name, "caption") for name in names] == [["ein Hündchen"], ["a dog", "a dog, again"], []]
    assert not {name for record in found.records.values() for name in record if name.startswith(("object/", "class/"))}


def panoptic() -> dict[str, Any]:
    segments = [
        {"id": 70_000, "category_id": 18, "bbox": [0, 0, 4, 3], "area": 12, "iscrowd": 0},
        {"id": 3, "category_id": 1, "bbox": [4, 0, 4, 6], "area": 24, "iscrowd": 1},
    ]
    return instances() | {"annotations": [{"image_id": 7, "file_name": "7.png", "segments_info": segments}]}


def test_reads_panoptic_segments_from_their_pngs(tmp_path: Path) -> None:
    (tmp_path / "panoptic_val").mkdir()
    picture = read(write_json(tmp_path / "panoptic_val.json", panoptic())).pictures["000000000007.jpg"]
    assert picture.map_file == MapFile(str(tmp_path / "panoptic_val" / "7.png"), holds_segments=True)
    assert [(item.class_name, item.segmentation, item.is_crowd) for item in picture.objects] == [
        ("dog", SegmentId(70_000), False),
        ("person", SegmentId(3), True),
    ]


def test_finds_panoptic_pngs_next_to_the_json_file(tmp_path: Path) -> None:
    picture = read(write_json(tmp_path / "panoptic_val.json", panoptic())).pictures["000000000007.jpg"]
    assert picture.map_file is not None
    assert picture.map_file.path == str(tmp_path / "7.png")


def test_takes_lvis_file_names_from_urls(tmp_path: Path) -> None:
    content = instances()
    for image in content["images"]:
        image["coco_url"] = f"http://images.cocodataset.org/train2017/{image.pop('file_name')}"
    found = read(write_json(tmp_path / "a.json", content))
    assert "train2017/000000000007.jpg" in found.pictures


# Values of a row of `images` or `annotations` that do not fit, and the reason.
DAMAGED: list[tuple[str, dict[str, Any], str]] = [
    ("annotations", {"category_id": 99}, "unknown category_id 99"),
    ("annotations", {"image_id": 99}, "does not list"),
    ("annotations", {"id": 1}, "another annotation has the same id"),
    ("annotations", {"bbox": [1, 2, 3]}, "'bbox'"),
    ("annotations", {"bbox": [1, 2, 3, "4"]}, "'bbox'"),
    ("annotations", {"bbox": [1, 2, 3, True]}, "'bbox'"),
    ("annotations", {"bbox": [1, 2, 3, 10**400]}, "'bbox'"),
    ("annotations", {"area": "large"}, "'area'"),
    ("annotations", {"image_id": None}, "'image_id'"),
    ("annotations", {"segmentation": [[1, 2, 3, 4]]}, "polygon"),
    ("annotations", {"segmentation": [1, 2, 3, 4, 5, 6]}, "polygons"),
    ("annotations", {"segmentation": [["a"] * 6]}, "annotation "),
    ("annotations", {"segmentation": {"counts": [1.5], "size": [4, 5]}}, "run length"),
    ("annotations", {"segmentation": {"counts": [-1], "size": [4, 5]}}, "run length"),
    ("annotations", {"segmentation": {"counts": "é", "size": [4, 5]}}, "run lengths"),
    ("annotations", {"keypoints": [1, 2]}, "keypoints"),
    ("images", {"file_name": None}, "file_name"),
    ("images", {"width": -5}, "'width'"),
    ("images", {"id": 1}, "another image has the same id"),
    ("images", {"id": [8]}, "'id'"),
]


def test_rejects_damaged_rows(tmp_path: Path) -> None:
    rows: dict[str, list[dict[str, Any]]] = {"images": [], "annotations": [], "categories": [{"id": 1, "name": "a"}]}
    damaged = []
    for number, (key, values, reason) in enumerate([("", {}, "")] * 2 + DAMAGED):
        image = {"id": number, "file_name": f"{number}.png", "height": HEIGHT, "width": WIDTH}
        annotation = {"id": number, "image_id": number, "category_id": 1, "bbox": [10, 5, 20, 15], "area": 276}
        row = {"images": image, "annotations": annotation}.get(key, {})
        row |= values
        rows["images"].append(image)
        if key != "images":
            rows["annotations"].append(annotation)
        # Categories may come last: a class is looked up with its picture.
        damaged += [(image if "category_id" in values else row, reason)] * bool(key)
    text = json.dumps(rows)
    pictures = [f"{number}.png" for number in range(len(damaged) + 2)]
    found = convert_annotated(tmp_path, {"a.json": text}, pictures, "a.json")
    # Two rows are of no picture, which leaves theirs without objects; the id of 1.png is another's, too.
    assert {name: len(found.boxes(name)) for name in found.records} == {"0.png": 1, "3.png": 0, "10.png": 0}
    (path,) = (tmp_path / "out" / "rejects").iterdir()
    rejects = [json.loads(line) for line in path.read_text().splitlines()]
    assert {reject["source"] for reject in rejects} == {str(tmp_path / "a.json")}
    reasons = [(json.JSONDecoder().raw_decode(text, reject["offset"])[0], reject["reason"]) for reject in rejects]
    assert len(reasons) == len(damaged)
    for row, reason in damaged:
        (given,) = [given for other, given in reasons if other == row]
        assert reason in given


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=3)
    | st.sampled_from([0, 1, 18, 10**400]),
    lambda inner: st.lists(inner, max_size=7) | st.dictionaries(st.sampled_from(["counts", "size", "id"]), inner),
    max_leaves=9,
)


@given(data=st.data(), value=JSON)
def test_reads_any_json_value_or_raises_source_error(
    data: st.DataObject, value: Any, tmp_path_factory: pytest.TempPathFactory
) -> None:
    content = instances()
    content["categories"][1] |= {"keypoints": ["nose"]}
    content["annotations"][2]["keypoints"] = [1, 2, 2]
    key = data.draw(st.sampled_from(["images", "annotations", "categories"]))
    row = data.draw(st.integers(0, len(content[key]) - 1))
    names = sorted({name for item in content[key] for name in item} | {"segments_info", "caption", "coco_url"})
    if data.draw(st.booleans()):
        content[key][row][data.draw(st.sampled_from(names))] = value
    else:
        content[key][row] = value
    path = write_json(tmp_path_factory.mktemp("coco") / "a.json", content)
    with contextlib.suppress(SourceError):
        found = read(path)
        schema = AnnotationSchema.from_contents(found.contents)
        for picture in found.pictures.values():
            with contextlib.suppress(BadRecordError):
                list_annotation_values(schema, picture, Frame(WIDTH, HEIGHT, 6, HEIGHT, WIDTH))


# Python's hashes of the first two integers are equal, and those of the next two.
@pytest.mark.parametrize("ids", [(-1, -2), (0, 2**61 - 1), (2**70, str(2**70)), (1, "1")])
def test_tells_different_annotation_ids_apart(ids: tuple[Any, Any], tmp_path: Path) -> None:
    content = instances()
    content["annotations"] = content["annotations"][:1] * 2
    found = read(write_json(tmp_path / "a.json", content))
    assert "another annotation has the same id" in str(found.one_error())
    content["annotations"] = [row | {"id": one} for row, one in zip(content["annotations"], ids, strict=True)]
    assert not read(write_json(tmp_path / "a.json", content)).errors


def test_rejects_rows_that_are_not_objects(tmp_path: Path) -> None:
    content = instances()
    content["images"].append("a.jpg")
    assert "not a JSON object" in str(read(write_json(tmp_path / "a.json", content)).one_error())


@pytest.mark.parametrize(
    "categories",
    [
        [{"id": 1, "name": "a"}, {"id": 1, "name": "b"}],
        [{"id": 1}],
        [{"name": "a"}],
    ],
)
def test_rejects_a_file_with_damaged_categories(tmp_path: Path, categories: list[dict[str, Any]]) -> None:
    path = write_json(tmp_path / "a.json", instances() | {"categories": categories})
    with pytest.raises(SourceError, match="categor"):
        read(path)


def test_rejects_a_file_without_images(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="without images"):
        read(write_json(tmp_path / "a.json", {"info": {}, "images": []}))


def small_file() -> bytes:
    content = {
        "images": [{"id": 7, "file_name": "ä.jpg", "width": 4, "height": 5}],
        "annotations": [{"id": 1, "image_id": 7, "category_id": 1, "bbox": [0, 1.5, 2e0, -3.0]}],
        "categories": [{"id": 1, "name": "€"}],
        "version": 12,
    }
    return json.dumps(content, ensure_ascii=False).encode()


def test_a_file_truncated_at_any_byte_raises_a_one_line_error(tmp_path: Path) -> None:
    data = small_file()
    path = tmp_path / "a.json"
    for length in range(len(data)):
        path.write_bytes(data[:length])
        with pytest.raises(SourceError) as caught:
            read(path)
        assert str(path) in str(caught.value)
        assert "\n" not in str(caught.value)


def test_rejects_data_after_the_end_of_the_json(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(small_file() + b" \n ")
    assert list(read(path).pictures) == ["ä.jpg"]
    path.write_bytes(small_file() + b" \n {}")
    with pytest.raises(SourceError, match="more after the end"):
        read(path)


def test_each_row_takes_less_than_100_bytes_of_memory(tmp_path: Path) -> None:
    """At most 100 bytes for each row more, whose polygon alone has 480: the rows wait in a file."""
    count, few = 8_000, 2_000
    row = '{"id": %d, "image_id": %d, "category_id": 1, "bbox": [1, 2, 3, 4], "area": 12, "segmentation": [[%s]]}'
    polygon = ", ".join("12.25" for _ in range(60))
    peaks = []
    for number in (few, count):
        rows = ", ".join(row % (key, key % (number // 8), polygon) for key in range(number))
        images = ", ".join(f'{{"id": {key}, "file_name": "{key}.jpg"}}' for key in range(number // 8))
        path = write_text(
            tmp_path / "a.json",
            f'{{"images": [{images}], "annotations": [{rows}], "categories": [{{"id": 1, "name": "a"}}]}}',
        )
        del rows, images
        form_pictures = 0
        tracemalloc.start()
        form = find_form(str(path))
        for _ in form.read(str(path), ListedNames()):
            form_pictures += 1
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert form_pictures == number // 8
    assert (peaks[1] - peaks[0]) / (count - few) < 100

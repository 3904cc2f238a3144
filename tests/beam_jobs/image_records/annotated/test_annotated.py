"""Annotations turn and shrink with their pictures, compared with Pillow; those that do not fit are rejected.

Each test is a conversion of a COCO file, or of label maps, with a picture for each case.
"""

from __future__ import annotations

import io
import json
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image, ImageOps

import tpudata
from tests.beam_jobs.images import encode, exif
from tests.beam_jobs.outcomes import SKIP, Outcome, outcome_of
from tests.beam_jobs.sources.inputs import write_files
from tests.helpers.label_maps import PALETTE, png_of
from tpudata.errors import SourceError
from tpudata.format import Feature, Manifest

Pixels = npt.NDArray[Any]
EDGES = [f"image/object/bbox/{edge}" for edge in ("ymin", "xmin", "ymax", "xmax")]
ORIENTATIONS = range(1, 9)
HEIGHT, WIDTH = 40, 64
PICTURE = np.zeros((HEIGHT, WIDTH, 3), np.uint8)
PICTURE[4:24, 8:40] = 255
BOX = [8, 4, 32, 20]


def turn(pixels: Pixels, orientation: int) -> Pixels:
    """What Pillow makes of a picture with an Exif orientation."""
    image = Image.fromarray(pixels)
    image.getexif()[0x0112] = orientation
    return np.asarray(ImageOps.exif_transpose(image))


def decode(data: bytes) -> Pixels:
    return np.asarray(Image.open(io.BytesIO(data)))


def lists(values: Mapping[str, Any], *names: str) -> list[list[Any]]:
    """Values of features as lists, also of one."""
    return [found if isinstance(found := values[name], list) else [found] for name in names]


def run_lengths(mask: Pixels) -> dict[str, Any]:
    flat = mask.ravel(order="F").astype(bool).tolist()
    counts, last = [0], False
    for bit in flat:
        if bit != last:
            counts.append(0)
            last = bit
        counts[-1] += 1
    return {"size": list(mask.shape), "counts": counts}


def convert_coco(
    folder: Path,
    pictures: Mapping[str, bytes],
    objects: Mapping[str, list[dict[str, Any]]],
    sizes: Mapping[str, tuple[int, int]] | None = None,
    categories: Any = None,
    panoptic: Mapping[str, dict[str, Any]] | None = None,
    **options: Any,
) -> Outcome:
    """Convert pictures with the objects of a COCO file; what is bad is skipped.

    Args:
        folder: where to write.
        pictures: files by name.
        objects: rows of annotations by picture; defaults are those of a dog in `BOX`.
        sizes: height and width in the file by picture; others have 40 x 64.
        categories: of the file; dogs and cats by default.
        panoptic: further rows of annotations by picture.
        **options: keywords of the conversion.
    """
    write_files(folder / "in" / "c", {f"{name}.jpg": data for name, data in pictures.items()})
    images: list[dict[str, Any]] = []
    rows: list[dict[str, Any]] = []
    for number, name in enumerate(pictures):
        height, width = (sizes or {}).get(name, (HEIGHT, WIDTH))
        images.append({"id": number, "file_name": f"{name}.jpg", "height": height, "width": width})
        for row in objects.get(name, []):
            plain = {"id": len(rows), "image_id": number, "category_id": 1, "bbox": BOX, "area": 640, "iscrowd": 0}
            rows.append({**plain, **row})
        if panoptic is not None and name in panoptic:
            rows.append({"image_id": number, **panoptic[name]})
    categories = categories or [{"id": 1, "name": "dog"}, {"id": 2, "name": "cat"}]
    path = folder / "instances.json"
    path.write_text(json.dumps({"images": images, "annotations": rows, "categories": categories}))
    tpudata.convert_images(folder / "in" / "c", folder / "out", annotations=path, **{**SKIP, **options})
    return read_outcome(folder, ".jpg")


def read_outcome(folder: Path, suffix: str) -> Outcome:
    """The outcome by the names of the pictures; annotations of one file are rejected by their places in it."""
    outcome = outcome_of(folder / "out", folder / "in")
    files = [path.read_text() for path in (folder / "out" / "rejects").glob("*")]
    reasons = [json.loads(line)["reason"] for text in files for line in text.splitlines()]
    records = {name.removesuffix(suffix): values for name, values in outcome.records.items()}
    return outcome._replace(records=records, rejects={f"{n}": reason for n, reason in enumerate(reasons)})


def join_reasons(outcome: Outcome) -> str:
    return " | ".join(outcome.rejects.values())


@pytest.mark.parametrize("shorter", [None, 20])
def test_boxes_masks_and_points_turn_and_shrink_with_their_pictures(shorter: int | None, tmp_path: Path) -> None:
    mask = PICTURE[..., 0] > 0
    pictures, objects, sizes, frames = {}, {}, {}, {}
    # The others once: what they are resized to is that of PNGs.
    names = ("JPEG", "PNG", "WEBP", "TIFF", "AVIF", "BMP") if shorter else ("PNG", "TIFF")
    for name in names:
        for orientation in ORIENTATIONS:
            case = f"{name}-{orientation}"
            more: dict[str, Any] = {"exif": exif(orientation)}
            more |= {"lossless": True} if name == "WEBP" else {"quality": 95} if name in ("JPEG", "AVIF") else {}
            pictures[case] = encode(PICTURE, name, **({} if name == "BMP" else more))
            # Pillow turns a TIFF as it opens it, so that annotations of such a file are of the upright picture.
            seen = turn(mask.astype(np.uint8), orientation) if name == "TIFF" else mask.astype(np.uint8)
            frames[case] = orientation if name not in ("TIFF", "BMP") else 1
            ys, xs = np.nonzero(seen)
            box = [int(xs.min()), int(ys.min()), int(np.ptp(xs)) + 1, int(np.ptp(ys)) + 1]
            first, last = [box[0], box[1], 2], [box[0] + box[2], box[1] + box[3], 1]
            objects[case] = [{"bbox": box, "segmentation": run_lengths(seen), "keypoints": [*first, *last, 0, 0, 0]}]
            sizes[case] = (seen.shape[0], seen.shape[1])
    categories = [{"id": 1, "name": "dog", "keypoints": ["first", "last", "none"]}]
    outcome = convert_coco(tmp_path, pictures, objects, sizes, categories, resize_shorter=shorter)
    assert not outcome.rejects
    for case, values in outcome.records.items():
        image = np.asarray(Image.open(io.BytesIO(values["image/encoded"])).convert("L"))
        height, width = image.shape
        assert min(image.shape) == (shorter or HEIGHT), case
        edges = [value for (value,) in lists(values, *EDGES)]
        top, left, bottom, right = np.round(edges * np.tile(image.shape, 2)).astype(int)
        inside = np.zeros(image.shape, bool)
        inside[top:bottom, left:right] = True
        assert (image[inside] > 128).mean() > 0.95, case
        assert (image[~inside] < 128).mean() > 0.95, case
        np.testing.assert_array_equal(decode(values["image/object/mask"]) > 0, inside, case)
        assert values["image/object/area"] == pytest.approx(640 * (height * width) / (HEIGHT * WIDTH)), case
        # The points are two opposite corners of the box.
        points_x, points_y, shown = lists(
            values, *(f"image/object/keypoint/{name}" for name in ("x", "y", "visibility"))
        )
        assert shown == [2, 1, 0]
        assert sorted(points_x[:2]) == pytest.approx([edges[1], edges[3]], abs=1e-5), case
        assert sorted(points_y[:2]) == pytest.approx([edges[0], edges[2]], abs=1e-5), case
        assert (points_x[2], points_y[2]) == (0, 0)
        upright = turn(np.arange(4).reshape(2, 2).astype(np.uint8), frames[case])
        first = np.argwhere(upright == 0)[0]
        assert (points_y[0] > points_y[1], points_x[0] > points_x[1]) == (bool(first[0]), bool(first[1])), case


def test_annotated_size_tells_whether_boxes_are_of_the_upright_picture(tmp_path: Path) -> None:
    pictures, sizes, objects = {}, {}, {}
    for orientation in ORIENTATIONS:
        data = encode(PICTURE, "PNG", exif=exif(orientation))
        for case in ("upright", "file", "unknown"):
            pictures[f"{case}-{orientation}"] = data
        box = np.argwhere(turn(PICTURE[..., 0], orientation))
        (top, left), (bottom, right) = box.min(axis=0).tolist(), (box.max(axis=0) + 1).tolist()
        objects[f"upright-{orientation}"] = [{"bbox": [left, top, right - left, bottom - top]}]
        objects[f"file-{orientation}"] = objects[f"unknown-{orientation}"] = [{}]
        sizes[f"upright-{orientation}"] = (WIDTH, HEIGHT)
        sizes[f"unknown-{orientation}"] = (0, 0)
    outcome = convert_coco(tmp_path, pictures, objects, sizes)
    for orientation in ORIENTATIONS:
        expected = lists(outcome.records[f"file-{orientation}"], *EDGES)
        assert lists(outcome.records[f"unknown-{orientation}"], *EDGES) == expected
        if orientation >= 5:
            assert lists(outcome.records[f"upright-{orientation}"], *EDGES) == expected
    words = "annotated as 40 x 64 pixels, but the picture has 64 x 40"
    assert join_reasons(outcome).count(words) == 4


def test_clips_rounded_boxes_and_rejects_boxes_outside_or_without_area(tmp_path: Path) -> None:
    clipped = [(-0.9, -1, 65, 40.9), (-1, -0.01, 64.0001, 41)]
    bad = [
        (0, -1.01, 10, 10),
        (-2, 0, 10, 10),
        (0, 0, 10, 41.5),
        (0, 0, 66, 10),
        (5, 5, 5, 10),
        (5, 5, 10, 5),
        (10, 5, 5, 10),
        (0, 40.1, 10, 40.9),
        (0, -0.9, 10, -0.1),
        (50, 0, 50 + 1e-9, 1),
        (0, 0, 1e300, 10),
    ]
    mixer = random.Random(0)
    wild = [[mixer.uniform(-3, side) for side in (70, 45, 70, 45)] for _ in range(80)]
    boxes = {f"clipped {n}": box for n, box in enumerate(clipped)} | {f"bad {n}": box for n, box in enumerate(bad)}
    boxes |= {f"wild {n}": tuple(box) for n, box in enumerate(wild)}  # type: ignore[misc]
    objects = {
        name: [{"bbox": [left, top, right - left, bottom - top]}] for name, (left, top, right, bottom) in boxes.items()
    }
    outcome = convert_coco(tmp_path, dict.fromkeys(boxes, encode(PICTURE, "PNG")), objects)
    for name in boxes:
        if name.startswith("clipped"):
            assert lists(outcome.records[name], *EDGES) == [[0], [0], [1], [1]]
        elif name.startswith("bad"):
            assert name not in outcome.records
    for name, values in outcome.records.items():
        ymin, xmin, ymax, xmax = (value for (value,) in lists(values, *EDGES))
        assert 0 <= ymin < ymax <= 1, name
        assert 0 <= xmin < xmax <= 1, name
    assert len([name for name in outcome.records if name.startswith("wild")]) > 5


def test_stores_objects_as_lists_in_file_order(tmp_path: Path) -> None:
    cat = {"category_id": 2, "bbox": [32, 0, 32, 40], "area": 2000, "iscrowd": 1}
    pictures = dict.fromkeys(("several", "none"), encode(PICTURE, "PNG"))
    outcome = convert_coco(tmp_path, pictures, {"several": [{}, cat, {}]}, label_offset=1)
    names = [*EDGES, *(f"image/object/{name}" for name in ("class/label", "class/text", "is_crowd", "area"))]
    ymin, xmin, ymax, xmax, *others = lists(outcome.records["several"], *names)
    assert [ymin, xmin, ymax, xmax] == [
        pytest.approx([0.1, 0, 0.1]),
        pytest.approx([0.125, 0.5, 0.125]),
        pytest.approx([0.6, 1, 0.6]),
        pytest.approx([0.625, 1, 0.625]),
    ]
    assert others == [[1, 2, 1], [b"dog", b"cat", b"dog"], [0, 1, 0], [640, 2000, 640]]
    assert lists(outcome.records["none"], *names) == [[]] * 8
    features = {feature.name: feature for feature in outcome.manifest.features}
    label = "image/object/class/label"
    assert features[label] == Feature(label, "int64", "int64", (None,), num_classes=2, label_offset=1)
    assert features["image/object/area"] == Feature("image/object/area", "float", "float32", (None,))
    text = "image/object/class/text"
    assert features[text] == Feature(text, "bytes", "string", (None,), "utf8")


BAD_OBJECTS: dict[str, tuple[dict[str, Any], str]] = {
    "area": ({"area": -1}, "area"),
    "visibility": ({"keypoints": [1, 1, 3]}, "visibility 3"),
    "point": ({"keypoints": [1, 90, 2]}, "a keypoint outside of its picture"),
    "mask": ({"segmentation": {"size": [6, 10], "counts": [60]}}, "a mask of 10 x 6 pixels"),
    "counts": ({"segmentation": {"size": [40, 64], "counts": [1, 2]}}, "damaged"),
}


def test_rejects_pictures_whose_objects_do_not_fit_them(tmp_path: Path) -> None:
    objects = {name: [change] for name, (change, _) in BAD_OBJECTS.items()} | {
        "good": [{}],
        "second": [{}, {"bbox": [0, 0, 0, 5]}],
    }
    sizes = {"size": (HEIGHT, HEIGHT)}
    pictures = dict.fromkeys([*objects, "size"], encode(PICTURE, "PNG"))
    categories = [{"id": 1, "name": "dog", "keypoints": ["nose"]}]
    outcome = convert_coco(tmp_path, pictures, objects | {"size": [{}]}, sizes, categories)
    assert outcome.records.keys() == {"good"}
    reasons = join_reasons(outcome)
    for name, (_, reason) in BAD_OBJECTS.items():
        assert reason in reasons, (name, reasons)
    assert "object 2 (dog): a box without area" in reasons
    assert "annotated as 40 x 40 pixels" in reasons


MAP = np.arange(HEIGHT * WIDTH).reshape(HEIGHT, WIDTH) % 7


def convert_maps(folder: Path, pictures: Mapping[str, bytes], maps: Mapping[str, bytes], **options: Any) -> Outcome:
    write_files(folder / "in" / "c", {f"{name}.png": data for name, data in pictures.items()})
    write_files(folder / "maps", {f"{name}.png": data for name, data in maps.items()})
    tpudata.convert_images(folder / "in" / "c", folder / "out", masks=folder / "maps", **{**SKIP, **options})
    return read_outcome(folder, ".png")


def test_label_maps_keep_their_values_and_turn_and_shrink(tmp_path: Path) -> None:
    maps = {"grey": png_of(MAP), "palette": png_of(MAP, 8, PALETTE), "four": png_of(MAP, 4)}
    maps |= {f"{n}": png_of(MAP) for n in ORIENTATIONS}
    pictures = {name: encode(PICTURE, "PNG", exif=exif(int(name) if name.isdecimal() else 1)) for name in maps}
    key = "image/segmentation/class/encoded"
    records = convert_maps(tmp_path / "same", pictures, maps).records
    assert records["grey"][key] == maps["grey"]
    for name, values in records.items():
        expected = turn(MAP.astype(np.uint8), int(name) if name.isdecimal() else 1)
        np.testing.assert_array_equal(decode(values[key]), expected, name)
    half = convert_maps(tmp_path / "half", pictures, maps, resize_shorter=20).records
    for name, values in half.items():
        expected = turn(MAP[1::2, 1::2].astype(np.uint8), int(name) if name.isdecimal() else 1)
        np.testing.assert_array_equal(decode(values[key]), expected, name)
    deep = {"deep": png_of(MAP * 100, 16)}
    wide = convert_maps(tmp_path / "deep", dict.fromkeys(deep, pictures["grey"]), deep).records
    np.testing.assert_array_equal(decode(wide["deep"][key]), MAP * 100)
    # A size that no factor of the picture's has: the nearest pixel, of which Pillow may take another on an edge.
    odd = convert_maps(tmp_path / "odd", {"grey": pictures["grey"]}, {"grey": maps["grey"]}, resize_shorter=13).records
    found = decode(odd["grey"][key])
    expected = np.asarray(Image.fromarray(MAP.astype(np.uint8)).resize(found.shape[::-1], Image.Resampling.NEAREST))
    assert (found == expected).mean() > 0.9


BAD_MAPS: dict[str, tuple[bytes, str]] = {
    "wrong size": (png_of(MAP[:30]), "annotated as 64 x 30 pixels"),
    "wrong end": (png_of(MAP)[:-30], "does not decode"),
    "wrong colours": (encode(PICTURE, "PNG"), "a PNG of colours"),
}


def test_rejects_label_maps_that_do_not_fit_their_pictures(tmp_path: Path) -> None:
    maps = {name: data for name, (data, _) in BAD_MAPS.items()} | {"good": png_of(MAP)}
    outcome = convert_maps(tmp_path, dict.fromkeys([*maps], encode(PICTURE, "PNG")), maps)
    assert outcome.records.keys() == {"good"}
    for name, (_, reason) in BAD_MAPS.items():
        assert reason in join_reasons(outcome), (name, join_reasons(outcome))


def segments_png(ids: Pixels) -> bytes:
    return encode(np.stack([ids % 256, ids // 256 % 256, ids // 65_536], -1).astype(np.uint8), "PNG")


def test_stores_panoptic_segments_as_masks_and_a_map(tmp_path: Path) -> None:
    ids = np.zeros((HEIGHT, WIDTH), np.uint32)
    ids[:20, :32], ids[20:, 32:] = 70_000, 3
    segments = [
        {"id": 70_000, "category_id": 1, "bbox": [0, 0, 32, 20], "area": 640, "iscrowd": 0},
        {"id": 3, "category_id": 2, "bbox": [32, 20, 32, 20], "area": 640, "iscrowd": 1},
    ]
    cases = {
        "good": (segments_png(ids), segments),
        "lost": (segments_png(ids), [{**segments[0], "id": 99}]),
        "grey": (png_of(MAP), segments),
        "smaller": (segments_png(ids[:30]), segments),
    }
    write_files(tmp_path, {f"{name}-map.png": data for name, (data, _) in cases.items()})
    rows = {name: {"file_name": f"{name}-map.png", "segments_info": found} for name, (_, found) in cases.items()}
    outcome = convert_coco(tmp_path, dict.fromkeys(cases, encode(PICTURE, "PNG")), {}, panoptic=rows)
    values = outcome.records["good"]
    first, second = (decode(data) for data in values["image/object/mask"])
    np.testing.assert_array_equal(first > 0, ids == 70_000)
    np.testing.assert_array_equal(second > 0, ids == 3)
    expected = np.select([ids == 70_000, ids == 3], [0, 1], 255)
    np.testing.assert_array_equal(decode(values["image/segmentation/class/encoded"]), expected)
    assert outcome.records.keys() == {"good"}
    for reason in ("segment 99 has no pixel", "not a PNG of colours", "64 x 30 pixels"):
        assert reason in join_reasons(outcome), join_reasons(outcome)


def convert_rows(folder: Path, *rows: dict[str, Any]) -> Outcome:
    """Convert pictures `0.png`, `1.png`, ... with rows of metadata.jsonl."""
    write_files(folder / "in" / "c", {f"{n}.png": encode(PICTURE, "PNG") for n in range(len(rows))})
    lines = [json.dumps({"file_name": f"{n}.png", **row}) for n, row in enumerate(rows)]
    (folder / "in" / "c" / "metadata.jsonl").write_text("\n".join(lines))
    source = folder / "in" / "c"
    tpudata.convert_images(source, folder / "out", annotations=source / "metadata.jsonl", **SKIP)
    return read_outcome(folder, "")


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.matrix)])
def test_warns_of_values_that_are_not_stored(tmp_path: Path, workers: int) -> None:
    for name in ("a", "b"):
        write_files(tmp_path / "in", {f"{name}.png": encode(PICTURE, "PNG")})
    rows = [
        {"file_name": "a.png", "n": 1, "nested": {"x": 1}, "mixed": 1, "big": 2**70},
        {"file_name": "b.png", "n": 2, "nested": {"x": 2}, "mixed": "1", "big": 1},
    ]
    (tmp_path / "in" / "metadata.jsonl").write_text("\n".join(map(json.dumps, rows)))
    annotations = tmp_path / "in" / "metadata.jsonl"
    manifest = tpudata.convert_images(tmp_path / "in", tmp_path / "out", annotations=annotations, workers=workers)
    assert isinstance(manifest, Manifest)
    assert {feature.name for feature in manifest.features} & {"n", "nested", "mixed", "big"} == {"n"}
    assert "big, mixed, nested;" in manifest.warnings["annotation_values"]


def test_stores_captions_classes_and_values_of_pictures(tmp_path: Path) -> None:
    outcome = convert_rows(
        tmp_path,
        {"text": ["ein Hündchen", "two"], "label": "dog", "n": 3, "x": 1, "t": ["ä"]},
        {"text": [], "label": "cat", "n": 4, "x": 0.5, "t": []},
        # What half of a surrogate pair stands for is no text.
        {"text": ["\ud800"], "label": "cat", "n": 4, "x": 0.5, "t": []},
        {"text": ["no class"], "n": 4, "x": 0.5, "t": []},
    )
    first, second = outcome.records["0.png"], outcome.records["1.png"]
    assert first["image/caption"] == ["ein Hündchen".encode(), b"two"]
    assert (first["n"], first["x"], first["t"]) == (3, 1.0, "ä".encode())
    assert (first["image/class/text"], second["image/class/text"]) == (b"dog", b"cat")
    assert (first["image/class/label"], second["image/class/label"]) == (1, 0)
    assert (second["image/caption"], second["t"]) == ([], [])
    assert set(outcome.records) == {"0.png", "1.png", "3.png"}
    assert len(outcome.rejects) == 1
    assert outcome.records["3.png"]["image/class/label"] == []
    assert "not UTF-8" in join_reasons(outcome)


def test_rejects_annotations_with_different_keypoints(tmp_path: Path) -> None:
    categories = [{"id": 1, "name": "dog", "keypoints": ["a"]}, {"id": 2, "name": "cat", "keypoints": ["a", "b"]}]
    objects: dict[str, list[dict[str, Any]]] = {
        "a": [{"keypoints": [1, 2, 2]}, {"category_id": 2, "keypoints": [1, 2, 2, 3, 4, 2]}]
    }
    with pytest.raises(SourceError, match="keypoints"):
        convert_coco(tmp_path, {"a": encode(PICTURE, "PNG")}, objects, categories=categories)

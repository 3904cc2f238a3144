"""Records of images in each layout, their common schema, and rejected values."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tpudata
from beam_jobs.sources import Reject, make_reference, raise_rejection
from tests.beam_jobs.images import encode, exif, picture
from tests.beam_jobs.one_unit import OneUnit
from tests.beam_jobs.outcomes import SKIP, Outcome, convert_pictures, outcome_of
from tests.beam_jobs.plugins import install
from tests.beam_jobs.sources.inputs import write_files
from tpudata.errors import OutputError, SourceError, UsageError
from tpudata.format import Feature

JPEG = encode(picture(), "JPEG")
GREY = picture()[..., 0]


def test_stores_the_features_of_the_imagenet_layout(tmp_path: Path) -> None:
    write_files(tmp_path / "in", {"cat/1.jpg": JPEG, "dog/1.jpg": JPEG})
    manifest = tpudata.convert_images(tmp_path / "in", tmp_path / "out", label_offset=1)
    assert outcome_of(tmp_path / "out", tmp_path / "in").records["dog/1.jpg"] == {
        "image/encoded": JPEG,
        "image/format": b"JPEG",
        "image/height": 24,
        "image/width": 40,
        "image/channels": 3,
        "image/colorspace": b"RGB",
        "image/class/label": 2,
        "image/class/text": b"dog",
        "image/filename": b"dog/1.jpg",
    }
    assert manifest.feature("image/class/label") == Feature(
        "image/class/label", "int64", "int64", num_classes=2, label_offset=1
    )
    assert {feature.name for feature in manifest.features} == {
        *(f"image/{name}" for name in ("encoded", "format", "height", "width", "channels", "colorspace", "filename")),
        *("image/class/label", "image/class/text"),
    }


def test_stores_turned_pixels_in_the_raw_layout(tmp_path: Path) -> None:
    write_files(
        tmp_path / "in",
        {"cat/1.png": encode(picture(), "PNG", exif=exif(6)), "dog/1.png": encode(picture(40, 24), "PNG")},
    )
    manifest = tpudata.convert_images(tmp_path / "in", tmp_path / "out", layout="raw", label_offset=1)
    assert manifest.features == (
        Feature("image_raw", "bytes", "uint8", (40, 24, 3), encoding="raw"),
        Feature("label", "int64", "int64", num_classes=2, label_offset=1),
    )
    found = {example["label"][0]: example for example in tpudata.open_dataset(str(tmp_path / "out")).examples("train")}
    assert found[1].keys() == {"image_raw", "label"}
    pixels = np.frombuffer(found[1]["image_raw"][0], np.uint8).reshape(40, 24, 3)  # type: ignore[arg-type]
    np.testing.assert_array_equal(pixels, np.rot90(picture(), -1))


@pytest.mark.parametrize("layout", ["imagenet", "raw"])
def test_stores_no_labels_without_classes(layout: str, tmp_path: Path) -> None:
    write_files(tmp_path / "in", {"1.jpg": JPEG})
    manifest = tpudata.convert_images(tmp_path / "in", tmp_path / "out", layout=layout, unlabelled=True)
    assert manifest.labels is None
    assert not [feature.name for feature in manifest.features if "label" in feature.name or "class" in feature.name]


@pytest.mark.parametrize(
    ("other", "shards"),
    [(encode(picture(24, 41), "JPEG"), 1), (encode(GREY, "JPEG"), 3)],
    ids=["width in a shard", "channels in another shard"],
)
def test_raw_layout_rejects_files_of_different_sizes(other: bytes, shards: int, tmp_path: Path) -> None:
    write_files(tmp_path / "in", {f"c/{n}.jpg": JPEG for n in range(12)} | {"c/other.jpg": other})
    message = r"is 24 x 4\d x \d .*, but .* is 24 x 4\d x \d.* use layout=imagenet"
    with pytest.raises(SourceError, match=message) as error:
        tpudata.convert_images(tmp_path / "in", tmp_path / "out", layout="raw", num_shards=shards)
    assert "c/other.jpg" in str(error.value)


def test_schema_keeps_dimensions_that_all_images_share(tmp_path: Path) -> None:
    files = {
        "colour": JPEG,
        "grey": encode(GREY, "JPEG"),
        "wide": encode(picture(24, 60), "GIF"),
        "bitmap": encode(GREY, "BMP"),
        # What is rejected has no part in it.
        "cut": encode(picture(25, 41), "JPEG")[:-9],
    }
    one, three = (convert_pictures(tmp_path / f"{n}", files, num_shards=n).manifest for n in (1, 3))
    for manifest in (one, three):
        # As many channels as any has: readers make the others as wide.
        assert manifest.feature("image/encoded") == Feature(
            "image/encoded", "bytes", "uint8", (24, None, 3), encoding="image"
        )
        assert manifest.converted == {"GIF": 1, "BMP": 1}
        assert manifest.split("train").decoded_bytes == 24 * 40 * 3 + 24 * 40 + 24 * 60 * 3 + 24 * 40
    greys = {"a": encode(GREY, "PNG"), "b": encode(GREY[:20], "PNG")}
    manifest = convert_pictures(tmp_path / "greys", greys).manifest
    assert manifest.feature("image/encoded").shape == (None, 40, 1)


def test_resume_rejects_changed_image_options(tmp_path: Path) -> None:
    write_files(tmp_path / "in", {"c/1.gif": encode(picture(), "GIF")})
    tpudata.convert_images(tmp_path / "in", tmp_path / "out", jpeg_only=True, quality=80)
    with pytest.raises(OutputError, match="quality"):
        tpudata.convert_images(tmp_path / "in", tmp_path / "out", jpeg_only=True, quality=81, resume=True)


def test_plan_estimates_the_bytes_of_changed_images(tmp_path: Path) -> None:
    mixer = np.random.default_rng(0)
    sides = mixer.integers(16, 96, 150)
    noise = {
        f"c/{n}.jpg": encode(mixer.integers(0, 256, (side, side, 3), np.uint8), "JPEG") for n, side in enumerate(sides)
    }
    # The listed size of a rejected file must not count.
    write_files(tmp_path / "in", noise | {"c/broken.jpg": b"\0" * 100})
    changes: dict[str, dict[str, Any]] = {
        "kept": {},
        "small": {"resize_shorter": 24},
        "raw": {"layout": "raw", "resize_shorter": 8},
    }
    for name, options in changes.items():
        planned = tpudata.convert_images(tmp_path / "in", tmp_path / name, dry_run=True, **{**SKIP, **options})
        manifest = tpudata.convert_images(tmp_path / "in", tmp_path / name, **{**SKIP, **options})
        assert planned is not None
        assert planned.splits["train"].bytes == pytest.approx(manifest.split("train").bytes, rel=0.02), name


@dataclasses.dataclass(frozen=True, kw_only=True)
class Listed(OneUnit):
    """The same picture under many names, each with its features, which are in this process alone."""

    has_classes = True

    @property
    def features(self) -> tuple[Feature, ...]:
        return SCHEMA

    def references(self, unit: str, ignored: list[str], reject: Reject = raise_rejection) -> Iterator[Any]:
        del ignored, reject
        for name, features in CASES.items():
            labels = features.get("labels", ("cat",))
            values = {key: value for key, value in features.items() if key != "labels"}
            place: dict[str, Any] = {"path": unit, "offset": 0, "size": len(JPEG)}
            yield make_reference(self.options, name, **place, labels=labels, features=values)


SCHEMA: tuple[Feature, ...] = ()
CASES: Mapping[str, Mapping[str, Any]] = {}


def convert_listed(
    folder: Path,
    schema: tuple[Feature, ...],
    cases: Mapping[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    key: str = "image/filename",
    **options: Any,
) -> Outcome:
    """Convert a picture with the features of each case; what is bad is skipped."""
    folder.mkdir(exist_ok=True)
    (folder / "in.jpg").write_bytes(JPEG)
    monkeypatch.setitem(globals(), "SCHEMA", schema)
    monkeypatch.setitem(globals(), "CASES", cases)
    install(monkeypatch, "tpudata.sources", listed=Listed)
    tpudata.convert_images(folder / "in.jpg", folder / "out", source="listed", **SKIP, **options)
    outcome = outcome_of(folder / "out", folder, key)
    # The source of a record in a file with others is `NAME in PATH`.
    return outcome._replace(rejects={name.split(" in ")[0]: reason for name, reason in outcome.rejects.items()})


EXTRA = (
    Feature("age", "int64", "int64"),
    Feature("weight", "float", "float32"),
    Feature("note", "bytes", "string", encoding="utf8"),
)
VALUES = {"age": -3, "weight": 2, "note": "für Äpfel"}
BAD_VALUES: dict[str, tuple[dict[str, Any], str]] = {
    "no age": ({"age": None}, "no int64 in column 'age': no value"),
    "half an age": ({"age": 1.5}, "no int64 in column 'age': 1.5"),
    "old": ({"age": 2**63}, "no int64 in column 'age': 9223372036854775808"),
    "much": ({"weight": "much"}, "no float32 in column 'weight': 'much'"),
    "true": ({"weight": True}, "no float32 in column 'weight': True"),
    "heavy": ({"weight": 1e300}, "1e+300 in column 'weight' is too large for float32"),
    "heavier": ({"weight": 10**400}, "0 in column 'weight' is too large for float32"),
    "seven": ({"note": 7}, "no string in column 'note': 7"),
    "two": ({"labels": ("cat", "dog")}, "not exactly one label: 2 labels"),
}


def test_stores_extra_columns_or_rejects_them_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cases = {name: {**VALUES, **values} for name, (values, _) in BAD_VALUES.items()}
    # File names that are not UTF-8 keep their bytes.
    cases |= {"good": VALUES, "odd": VALUES | {"note": "caf\udce9.jpg"}}
    outcome = convert_listed(tmp_path, EXTRA, cases, monkeypatch)
    assert outcome.records.keys() == {"good", "odd"}
    good = outcome.records["good"]
    assert (good["age"], good["weight"], good["note"].decode()) == (-3, 2.0, "für Äpfel")
    assert outcome.records["odd"]["note"] == b"caf\xe9.jpg"
    assert outcome.manifest.features[-3:] == EXTRA
    for name, (_, reason) in BAD_VALUES.items():
        assert reason in outcome.rejects[name], name


SHAPES: dict[str, tuple[tuple[int | None, ...], Any]] = {
    "matrix": ((2, 2), [[1, 2], [3, math.inf]]),
    "no columns": ((2, 0), [[], []]),
    "no rows": ((0, 3), []),
    "list": ((None,), [1, 2.5]),
    "pair": ((2,), [1, 2]),
    "four": ((4,), [1, 2, 3, 4]),
}
BAD_SHAPES = [
    ("pair", 3, "3"),
    ("pair", None, "no value"),
    ("pair", [1, 2, 3], "[1, 2, 3]"),
    ("matrix", [[1, 2], 3], "[[1, 2], 3]"),
    ("matrix", [[1, 2], [3]], "[[1, 2], [3]]"),
    ("list", [[1], [2]], "[[1], [2]]"),
    ("four", [*range(3000)], "[0, 1, 2, 3, 4, 5, ...]"),
]


def test_stores_arrays_flat_and_rejects_other_shapes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    schema = tuple(Feature(name, "float", "float32", shape) for name, (shape, _) in SHAPES.items())
    good = {name: value for name, (_, value) in SHAPES.items()}
    cases = {f"{n}": good | {name: value} for n, (name, value, _) in enumerate(BAD_SHAPES)}
    outcome = convert_listed(tmp_path, schema, cases | {"good": good, "empty": good | {"list": []}}, monkeypatch)
    assert outcome.records.keys() == {"good", "empty"}
    assert outcome.records["empty"]["list"] == []
    for name, value in good.items():
        assert outcome.records["good"][name] == np.ravel(value).tolist(), name
    for number, (name, _, got) in enumerate(BAD_SHAPES):
        assert f"no float32 of shape {SHAPES[name][0]} in column '{name}': {got}" in outcome.rejects[f"{number}"]


ENCODED = (
    Feature("view", "bytes", "uint8", (None, None, 3), encoding="image"),
    Feature("map", "bytes", "uint8", (None, None, 1), encoding="label_map"),
    Feature("pixels", "bytes", "uint8", (2, 3), encoding="raw"),
    Feature("parts", "bytes", "string", (None,)),
    Feature("grid", "int64", "int64", (2, 2)),
)
CLASSES = np.array([[0, 1], [20, 3]], np.uint8)
GOOD = {
    "view": picture(),
    "map": CLASSES,
    "pixels": np.arange(6, dtype=np.uint8).reshape(2, 3),
    "parts": [b"a", b""],
    "grid": [[1, 2], (3, 4)],
}
UNFIT: list[tuple[dict[str, Any], str]] = [
    ({"view": b"no image"}, "Feature 'view': it does not fit the schema"),
    ({"view": None}, "no uint8 of shape (None, None, 3) in column 'view': no value"),
    ({"map": np.full((2, 2), 300)}, "Feature 'map': its label map does not fit uint8"),
    ({"pixels": np.zeros((3, 2), np.uint8)}, "Feature 'pixels': it does not fit the schema"),
    ({"parts": b"a"}, "no string of shape (None,) in column 'parts': b'a'"),
    ({"grid": [[1, 2], [3, 2**63]]}, "no int64 of shape (2, 2) in column 'grid'"),
    ({"grid": np.zeros((2, 2))}, "no int64 of shape (2, 2) in column 'grid'"),
]


@pytest.mark.parametrize("layout", ["imagenet", "raw"])
def test_stores_images_arrays_and_bytes_or_rejects_them(
    layout: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    schema = (*ENCODED, Feature("name", "bytes", "string", encoding="utf8"))
    cases = {f"{n}": GOOD | values for n, (values, _) in enumerate(UNFIT)} | {
        "good": GOOD,
        "file": GOOD | {"view": JPEG},
    }
    cases = {name: values | {"name": name} for name, values in cases.items()}
    outcome = convert_listed(tmp_path, schema, cases, monkeypatch, key="name", layout=layout)
    record = outcome.records["good"]
    np.testing.assert_array_equal(tf.io.decode_png(record["view"]), picture())
    np.testing.assert_array_equal(tf.io.decode_png(record["map"])[..., 0], CLASSES)
    assert (record["pixels"], record["parts"], record["grid"]) == (bytes(range(6)), [b"a", b""], [1, 2, 3, 4])
    # The bytes of a file are stored unchanged.
    assert outcome.records["file"]["view"] == JPEG
    assert outcome.records.keys() == {"good", "file"}
    for number, (_, reason) in enumerate(UNFIT):
        assert reason in outcome.rejects[f"{number}"]


@pytest.mark.parametrize(
    ("layout", "schema", "message"),
    [
        ("imagenet", (Feature("image/height", "int64", "int64"),), "'image/height' has the name of a feature"),
        ("raw", (Feature("label", "int64", "int64"),), "'label' has the name"),
        ("imagenet", (EXTRA[0], EXTRA[0]), "'age' has the name"),
        (
            "imagenet",
            (Feature("boxes", "float", "float32", (None, 4)),),
            r"'boxes': unsupported shape \(got \(None, 4\)",
        ),
    ],
)
def test_rejects_features_with_reserved_names_or_unsupported_shapes(
    layout: str, schema: tuple[Feature, ...], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UsageError, match=message):
        convert_listed(tmp_path, schema, {"a": {}}, monkeypatch, layout=layout)

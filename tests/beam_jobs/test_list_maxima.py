"""Lengths of the longest lists in manifests, and feeding without explicit lengths."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from beam_jobs.images import run
from beam_jobs.reshard import run as run_reshard
from tests.beam_jobs.miniatures import NAMES, coco, write_pictures
from tests.beam_jobs.texts import convert
from tpudata import CentreCrop, FeatureError, Images, UsageError, as_numpy, make_input_fn
from tpudata.format import open_dataset

OBJECTS = [f"image/object/bbox/{edge}" for edge in ("ymin", "xmin", "ymax", "xmax")]


def write_coco(root: Path, most: int, names: list[str] = NAMES) -> list[str]:
    """Pictures, the first of which has `most` equal boxes; the flags of a conversion."""
    file = coco(names)
    (first,) = file["annotations"][:1]
    file["annotations"] += [{**first, "id": 1000 + number} for number in range(most - 1)]
    write_pictures(root / "in", names)
    (root / "boxes.json").write_text(json.dumps(file))
    out = str(root / "out")
    return ["--input", str(root / "in"), "--annotations", str(root / "boxes.json"), "--output", out, "--num-shards=2"]


def batch_of(path: Path, **options: Any) -> dict[str, Any]:
    input_fn = make_input_fn(str(path), "train", training=False, **options)
    (batch,) = as_numpy(input_fn, open_dataset(str(path)).manifest.records)
    return dict(batch)


def test_pads_lists_to_the_longest_of_the_dataset(tmp_path: Path) -> None:
    flags = write_coco(tmp_path, 3)
    assert run(flags) == 0
    out = tmp_path / "out"
    maxima = open_dataset(str(out)).manifest.maxima
    assert {name: maxima[name] for name in OBJECTS} == dict.fromkeys(OBJECTS, 3)
    images = Images(crop=CentreCrop(8))
    by_name = batch_of(out, images=images, extra_features=(*OBJECTS, "image/object/class/label"))
    by_pattern = batch_of(out, images=images, pad={"image/object/*": None})
    for name in (*OBJECTS, "image/object/class/label", "image/object/count"):
        assert by_name[name].shape == ((12,) if name.endswith("count") else (12, 3))
        np.testing.assert_array_equal(by_name[name], by_pattern[name])
    assert by_pattern["image/object/mask"].shape == (12, 3, 8, 8)
    assert by_pattern["image/object/count"].max() == 3

    # What is added may have more.
    file = json.loads((tmp_path / "boxes.json").read_text())
    file["images"].append({**file["images"][0], "id": 999, "file_name": "more.jpg"})
    file["annotations"] += [{**file["annotations"][0], "id": 2000 + number, "image_id": 999} for number in range(5)]
    write_pictures(tmp_path / "in", ["more"])
    (tmp_path / "boxes.json").write_text(json.dumps(file))
    assert run([*flags, "--append", "--num-shards=1"]) == 0
    assert open_dataset(str(out)).manifest.maxima[OBJECTS[0]] == 5
    assert run_reshard([str(out), "--output", str(tmp_path / "again")]) == 0
    assert open_dataset(str(tmp_path / "again")).manifest.maxima == open_dataset(str(out)).manifest.maxima


def test_text_manifests_store_the_lengths_of_the_longest_lists(tmp_path: Path) -> None:
    rows = [{"text": "x", "v": [0.5, 1.5], "ids": [1, 2, 3]}, {"text": "y", "v": [], "ids": []}]
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert convert(path, tmp_path / "out", "--field=text", "--field=v:floats", "--field=ids:ints") == 0
    assert open_dataset(str(tmp_path / "out")).manifest.maxima == {"ids": 3, "v": 2}
    batch = batch_of(tmp_path / "out", extra_features=("v",))
    assert sorted(batch["v/count"].tolist()) == [0, 2]
    assert batch["v"].shape == (2, 2)
    # A field of no lists has no maximum, and a dataset without lists has the manifest that it had.
    assert convert(path, tmp_path / "plain", "--field=text") == 0
    assert b"maxima" not in (tmp_path / "plain" / "manifest.json").read_bytes()


def test_rejects_lists_of_unknown_length(tmp_path: Path) -> None:
    assert run(write_coco(tmp_path, 1)) == 0
    dataset = open_dataset(str(tmp_path / "out"))
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    del manifest["maxima"]
    (tmp_path / "out" / "manifest.json").write_text(json.dumps(manifest, indent=1, sort_keys=True) + "\n")
    with pytest.raises(UsageError, match="the manifest has no length of 'image/object/bbox/ymin'"):
        make_input_fn(dataset.path, "train", training=False, images=Images(size=(8, 8)), pad={"image/object/*": None})
    with pytest.raises(FeatureError, match=r"'image/object/bbox/ymin': shape .* Pass pad="):
        make_input_fn(
            dataset.path,
            "train",
            training=False,
            images=Images(size=(8, 8)),
            extra_features=("image/object/bbox/ymin",),
        )

"""Records of pictures with objects, as conversions write them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tests.helpers.datasets import encode_image
from tests.helpers.label_maps import png_of
from tpudata.format import Feature

Box = tuple[float, float, float, float]
BOX = "image/object/bbox/"
EDGES = tuple(f"{BOX}{edge}" for edge in ("ymin", "xmin", "ymax", "xmax"))
LABEL, TEXT, MASK = "image/object/class/label", "image/object/class/text", "image/object/mask"
KEYPOINT, CAPTION, MAP = "image/object/keypoint/x", "image/caption", "image/segmentation/class/encoded"
# Two classes, whose names are those of `write_dataset`.
FEATURES = (
    Feature("image/encoded", "bytes", "uint8", (None, None, 3), "image"),
    *(Feature(name, "float", "float32", (None,)) for name in EDGES),
    Feature(LABEL, "int64", "int64", (None,), num_classes=2),
    Feature(TEXT, "bytes", "string", (None,), "utf8"),
    Feature(MASK, "bytes", "string", (None,)),
    Feature(KEYPOINT, "float", "float32", (None, 3)),
    Feature(CAPTION, "bytes", "string", (None,), "utf8"),
    Feature(MAP, "bytes", "uint8", (None, None, 1), "label_map"),
)


def record_of(
    boxes: Sequence[Box], labels: Sequence[int], size: tuple[int, int] = (48, 96), **values: Any
) -> dict[str, Any]:
    """A record whose objects have these boxes and classes; `values` replaces features by the last part of their names."""
    pixels = np.zeros((*size, 3), np.uint8)
    record = {
        "image/encoded": encode_image(pixels),
        **{name: [float(box[edge]) for box in boxes] for edge, name in enumerate(EDGES)},
        LABEL: list(labels),
        TEXT: [f"class {label}" for label in labels],
        MASK: [png_of(pixels[..., 0])] * len(boxes),
        KEYPOINT: [0.5] * (3 * len(boxes)),
        CAPTION: ["a caption", "another <caption>"],
        MAP: png_of(pixels[..., 0]),
    }
    names = {name.rpartition("/")[2] if name != MAP else "map": name for name in record}
    return {**record, **{names[name]: value for name, value in values.items()}}

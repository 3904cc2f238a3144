"""The operations of RandAugment as Pillow has them: what ours are compared with."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageEnhance, ImageOps

Pixels = npt.NDArray[np.uint8]
GREY = (128, 128, 128)


def _affine(image: Image.Image, *coefficients: float) -> Image.Image:
    return image.transform(image.size, Image.Transform.AFFINE, coefficients, Image.Resampling.NEAREST, fillcolor=GREY)


def _solarize_add(image: Image.Image, addition: float) -> Image.Image:
    return image.point([min(255, value + int(addition)) if value < 128 else value for value in range(256)] * 3)


PILLOW: dict[str, Callable[[Image.Image, float], Image.Image]] = {
    "autocontrast": lambda image, _: ImageOps.autocontrast(image),
    "equalize": lambda image, _: ImageOps.equalize(image),
    "invert": lambda image, _: ImageOps.invert(image),
    "rotate": lambda image, degrees: image.rotate(degrees, Image.Resampling.NEAREST, fillcolor=GREY),
    "posterize": lambda image, bits: ImageOps.posterize(image, int(bits)),
    "solarize": lambda image, threshold: ImageOps.solarize(image, int(threshold)),
    "solarize_add": _solarize_add,
    "color": lambda image, factor: ImageEnhance.Color(image).enhance(factor),
    "contrast": lambda image, factor: ImageEnhance.Contrast(image).enhance(factor),
    "brightness": lambda image, factor: ImageEnhance.Brightness(image).enhance(factor),
    "sharpness": lambda image, factor: ImageEnhance.Sharpness(image).enhance(factor),
    "shear_x": lambda image, slope: _affine(image, 1, slope, 0, 0, 1, 0),
    "shear_y": lambda image, slope: _affine(image, 1, 0, 0, slope, 1, 0),
    "translate_x": lambda image, pixels: _affine(image, 1, 0, pixels, 0, 1, 0),
    "translate_y": lambda image, pixels: _affine(image, 1, 0, 0, 0, 1, pixels),
}


def pillow(name: str, image: Pixels, value: float) -> Pixels:
    result: Pixels = np.array(PILLOW[name](Image.fromarray(image), value))
    return result


def plain_cutout(image: Pixels, side: int, y: int, x: int) -> Pixels:
    result: Pixels = np.array(image)
    top, left = y - side // 2, x - side // 2
    result[max(0, top) : max(0, top + side), max(0, left) : max(0, left + side)] = GREY
    return result


def pictures() -> list[Pixels]:
    """Small pictures of several kinds: noise, a ramp, few values, one value, one pixel."""
    rng = np.random.default_rng(0)
    ramp = np.add.outer(np.arange(37), np.arange(52)).astype(np.uint8)
    return [
        rng.integers(0, 256, (41, 33, 3), dtype=np.uint8),
        np.stack([ramp + 60, ramp[::-1], 200 - ramp], axis=-1).astype(np.uint8),
        rng.choice(np.array([3, 4, 250], np.uint8), (16, 16, 3)),
        np.full((9, 7, 3), 129, np.uint8),
        np.array([[[5, 128, 255]]], np.uint8),
    ]

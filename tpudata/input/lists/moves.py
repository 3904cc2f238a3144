"""Boxes and points moved with the pixels of their image.

A move is a matrix, float32 [2, 3], from (y, x, 1) to the new (y, x), all in shares of the image's height and width.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from tpudata.input.lists.tables import Table

# Shares of a side, and of an area, that rounding leaves of boxes outside: 0.002 of 224 pixels.
_ROUNDING = 1e-5
# The move that changes nothing.
IDENTITY = ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0))


def crop_move(shape: tf.Tensor, window: tf.Tensor, flip: tf.Tensor) -> tf.Tensor:
    """Return the move of a crop.

    Args:
        shape: int32 [3], height, width and channels of the whole image.
        window: int32 [4], y, x, height and width of the window.
        flip: bool scalar, whether the crop is mirrored.
    """
    size, window = tf.cast(shape[:2], tf.float32), tf.cast(window, tf.float32)
    (down, across), (top, left) = tf.unstack(size / window[2:]), tf.unstack(-window[:2] / window[2:])
    mirror = tf.where(flip, -1.0, 1.0)
    zero = tf.zeros([])
    return tf.stack([[down, zero, top], [zero, mirror * across, mirror * left + tf.cast(flip, tf.float32)]])


def source_move(x_of: Sequence[Any], y_of: Sequence[Any], height: int, width: int) -> tf.Tensor:
    """Return the move of a transform that keeps areas, from where each pixel (x, y) of its result comes.

    Args:
        x_of: three scalars: it comes from x_of[0] * x + x_of[1] * y + x_of[2], in pixels.
        y_of: likewise for y.
        height: height of the image in pixels.
        width: its width.
    """
    a, b, c = (tf.cast(value, tf.float32) for value in x_of)
    d, e, f = (tf.cast(value, tf.float32) for value in y_of)
    # The determinant is 1, so that the inverse of ((a, b), (d, e)) is ((e, -b), (-d, a)).
    down = [a, -d * (width / height), (d * c - a * f) / height]
    across = [-b * (height / width), e, (b * f - e * c) / width]
    return tf.stack([down, across])


def move_table(
    table: Table, values: Mapping[str, tf.Tensor], moves: Sequence[tf.Tensor], least_visible: float
) -> dict[str, tf.Tensor]:
    """Return a table of one record after the moves of its image, one after the other.

    Boxes are those around the moved corners, clipped to the image after each move. Those without an area, or with less than
    `least_visible` of it, are dropped with their entries of all columns. Points may lie outside of the image.

    Args:
        table: the table.
        values: its columns and their count, by name.
        moves: float32 [2, 3] each.
        least_visible: least share of a box's area that keeps it.

    Returns:
        The columns and the count, by name.
    """
    found, count = {field.name: values[field.name] for field in table.columns}, values[table.count]
    for y, x in table.points:
        found[y], found[x] = _move_points(found[y], found[x], moves)
    place = tf.range(table.length)
    if table.boxes:
        boxes, is_visible = _move_boxes(_boxes(table, found), moves, least_visible)
        found |= dict(zip(table.boxes, [boxes] if len(table.boxes) == 1 else tf.unstack(boxes, axis=1), strict=True))
        kept = tf.reshape(tf.where(is_visible & (place < count)), [-1])
        count = tf.size(kept)
        # The dropped entries become padding: any entry will do.
        order = tf.pad(kept, [[0, table.length - count]])
        found = {name: tf.gather(column, order) for name, column in found.items()}
    is_real = place < count
    for field in table.columns:
        assert field.padding is not None
        column = found[field.name]
        mask = tf.reshape(is_real, [table.length] + [1] * (len(field.shape) - 1))
        column = tf.where(mask, column, tf.constant(field.padding.value, column.dtype))
        found[field.name] = tf.ensure_shape(column, field.shape)
    return {**found, table.count: count}


def _boxes(table: Table, values: Mapping[str, tf.Tensor]) -> tf.Tensor:
    """Return the boxes of a table as they are, float32 [entries, 4]."""
    columns = [values[name] for name in table.boxes]
    return columns[0] if len(columns) == 1 else tf.stack(columns, axis=1)


def _move_points(y: tf.Tensor, x: tf.Tensor, moves: Sequence[tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
    for move in moves:
        y, x = (row[0] * y + row[1] * x + row[2] for row in tf.unstack(move))
    return y, x


def _move_boxes(boxes: tf.Tensor, moves: Sequence[tf.Tensor], least_visible: float) -> tuple[tf.Tensor, tf.Tensor]:
    """Return moved boxes, float32 [entries, 4], and whether enough of each is visible, bool [entries]."""
    low, high = boxes[:, :2], boxes[:, 2:]
    visible = tf.ones(tf.shape(boxes)[:1])
    for move in moves:
        middle, half = (low + high) / 2, (high - low) / 2
        # The corners that lie furthest from the middle.
        middle = tf.linalg.matmul(middle, move[:, :2], transpose_b=True) + move[:, 2]
        half = tf.linalg.matmul(half, tf.abs(move[:, :2]), transpose_b=True)
        low, high = (tf.clip_by_value(corner, 0.0, 1.0) for corner in (middle - half, middle + half))
        area = tf.reduce_prod(2 * half, axis=1)
        visible *= tf.math.divide_no_nan(tf.reduce_prod(high - low, axis=1), area)
    has_area = tf.reduce_all(high - low > _ROUNDING, axis=1)
    return tf.concat([low, high], axis=1), has_area & (visible >= least_visible - _ROUNDING)

"""Boxes and points moved with the pixels of their image.

A move is an affine transform: a matrix, float32 [2, 3], from (y, x, 1) to the new (y, x), in shares of the height and width.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import tensorflow as tf

from tpudata.input.lists.tables import Table
from tpudata.tensor_types import Scalar

# Tolerance for rounding, as a share of a side or an area: 0.002 pixels of 224.
_ROUNDING = 1e-5
# The move that changes nothing.
IDENTITY = ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0))


def compute_crop_transform(shape: tf.Tensor, box: tf.Tensor, flip: tf.Tensor) -> tf.Tensor:
    """Return the affine transform of a crop, float32 [2, 3], from (y, x, 1) in the image to (y, x) in the window.

    Coordinates are shares of the height and width, from 0 to 1.

    Args:
        shape: int32 [3], height, width and channels of the whole image.
        box: int32 [4], y, x, height and width of the window.
        flip: bool scalar, whether the crop is mirrored.
    """
    size, box = tf.cast(shape[:2], tf.float32), tf.cast(box, tf.float32)
    scale_y, scale_x = tf.unstack(size / box[2:])
    offset_y, offset_x = tf.unstack(-box[:2] / box[2:])
    # A mirrored crop has 1 - x in place of x.
    sign = tf.where(flip, -1.0, 1.0)
    mirrored_offset_x = sign * offset_x + tf.cast(flip, tf.float32)
    zero = tf.zeros([])
    return tf.stack([[scale_y, zero, offset_y], [zero, sign * scale_x, mirrored_offset_x]])


def compute_source_transform(
    x_coefficients: Sequence[Scalar], y_coefficients: Sequence[Scalar], height: int, width: int
) -> tf.Tensor:
    """Return the affine transform of an operation that preserves areas, float32 [2, 3], from the sources of its pixels.

    It maps (y, x, 1) before the operation to (y, x) after it, in shares of the height and width, from 0 to 1.

    Args:
        x_coefficients: scalars a, b and c: the x from which pixel (x, y) of the result comes is a * x + b * y + c, in pixels.
        y_coefficients: scalars d, e and f: the y from which it comes is d * x + e * y + f.
        height: height of the image in pixels.
        width: width of the image in pixels.
    """
    a, b, c = (tf.cast(coefficient, tf.float32) for coefficient in x_coefficients)
    d, e, f = (tf.cast(coefficient, tf.float32) for coefficient in y_coefficients)
    # The determinant is 1, so that the inverse of ((a, b), (d, e)) is ((e, -b), (-d, a)).
    new_y = [a, -d * (width / height), (d * c - a * f) / height]
    new_x = [-b * (height / width), e, (b * f - e * c) / width]
    return tf.stack([new_y, new_x])


def move_tables(
    tables: Sequence[Table], features: Mapping[str, tf.Tensor], moves: tf.Tensor, least_visible: float
) -> dict[str, tf.Tensor]:
    """Return the features of a batch after the moves of its images, one after the other.

    A box becomes the box around its moved corners, clipped to the image after each move. Boxes without an area, or with less than
    `least_visible` of it, are dropped with their entries of all columns. Points may lie outside of the image.

    Args:
        tables: tables with boxes or points.
        features: features by name, [B, ...], among them the columns of the tables and their counts.
        moves: float32 [B, moves, 2, 3].
        least_visible: minimum visible share of a box's area; boxes with less are dropped.
    """
    moved = dict(features)
    for table in tables:
        moved |= _move_table(table, features, tf.unstack(moves, axis=1), least_visible)
    return moved


def move_record(
    tables: Sequence[Table], features: Mapping[str, tf.Tensor], moves: tf.Tensor, least_visible: float
) -> dict[str, tf.Tensor]:
    """Return the features of one record after the moves of its image, as `move_tables` does for a batch.

    Args:
        tables: tables with boxes or points.
        features: features by name, among them the columns of the tables and their counts.
        moves: float32 [moves, 2, 3].
        least_visible: minimum visible share of a box's area; boxes with less are dropped.
    """
    names = [name for table in tables for name in (table.count_name, *(field.name for field in table.columns))]
    batch = {name: features[name][tf.newaxis] for name in names}
    moved = move_tables(tables, batch, moves[tf.newaxis], least_visible)
    return {**features, **{name: moved[name][0] for name in names}}


def _move_table(
    table: Table, features: Mapping[str, tf.Tensor], moves: Sequence[tf.Tensor], least_visible: float
) -> dict[str, tf.Tensor]:
    """Return the columns and the count of a table by name, after the moves of the records' images.

    Args:
        table: table with boxes or points.
        features: features by name, [B, ...], among them the table's columns and its count.
        moves: moves of the records' images, one after the other: float32 [B, 2, 3] each.
        least_visible: minimum visible share of a box's area; entries of boxes with less are dropped.
    """
    columns = {field.name: features[field.name] for field in table.columns}
    count = features[table.count_name]
    for y, x in table.points:
        columns[y], columns[x] = _move_points(columns[y], columns[x], moves)
    is_real = tf.sequence_mask(count, table.length)
    if table.boxes:
        boxes, is_visible = _move_boxes(_stack_boxes(table, columns), moves, least_visible)
        # Boxes are one column of four numbers, or four columns.
        columns |= dict(zip(table.boxes, [boxes] if len(table.boxes) == 1 else tf.unstack(boxes, axis=2), strict=True))
        is_kept = is_visible & is_real
        # Move the kept boxes to the front, in their order.
        order = tf.argsort(tf.cast(tf.logical_not(is_kept), tf.int32), axis=1, stable=True)
        columns = {name: tf.gather(column, order, batch_dims=1) for name, column in columns.items()}
        count = tf.reduce_sum(tf.cast(is_kept, tf.int32), axis=1)
        is_real = tf.sequence_mask(count, table.length)
    for field in table.columns:
        assert field.padding is not None
        column = columns[field.name]
        entry_shape = column.shape[2:]
        # Reshaped so that it applies to all values of an entry.
        is_real_entry = tf.reshape(is_real, [-1, table.length] + [1] * entry_shape.rank)
        # The padding value of masks is for PNGs, bytes; decoded masks are padded with 0.
        padding_value = 0 if field.masks_of is not None else field.padding.value
        column = tf.where(is_real_entry, column, tf.constant(padding_value, column.dtype))
        columns[field.name] = tf.ensure_shape(column, (None, table.length, *entry_shape))
    return {**columns, table.count_name: count}


def _stack_boxes(table: Table, features: Mapping[str, tf.Tensor]) -> tf.Tensor:
    """Return the boxes of a table, float32 [B, entries, 4], from their four columns, or from one that has all four numbers."""
    columns = [features[name] for name in table.boxes]
    return columns[0] if len(columns) == 1 else tf.stack(columns, axis=2)


def _move_points(y: tf.Tensor, x: tf.Tensor, moves: Sequence[tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
    """Return moved points, (y, x), of the shapes of y and x.

    Args:
        y: y of each point, float32 [B, entries] or [B, entries, points].
        x: x of each point, of the same shape.
        moves: moves of the records' images, one after the other: float32 [B, 2, 3] each.
    """
    # Each coefficient, [B], is reshaped so that it applies to all entries and points of its record.
    coefficient_shape = [-1] + [1] * (y.shape.rank - 1)
    for move in moves:
        y_coefficients, x_coefficients = (
            [tf.reshape(coefficient, coefficient_shape) for coefficient in tf.unstack(matrix_row, axis=1)]
            for matrix_row in tf.unstack(move, axis=1)
        )
        y, x = (a * y + b * x + c for a, b, c in (y_coefficients, x_coefficients))
    return y, x


def _move_boxes(boxes: tf.Tensor, moves: Sequence[tf.Tensor], least_visible: float) -> tuple[tf.Tensor, tf.Tensor]:
    """Return moved boxes, float32 [B, entries, 4], and whether enough of each is visible, bool [B, entries].

    Args:
        boxes: float32 [B, entries, 4].
        moves: moves of the records' images, one after the other: float32 [B, 2, 3] each.
        least_visible: minimum visible share of a box's area.
    """
    low, high = tf.split(boxes, 2, axis=2)
    visible = tf.ones_like(boxes[:, :, 0])
    for move in moves:
        centre, half_size = (low + high) / 2, (high - low) / 2
        linear_part, offset = move[:, :, :2], move[:, tf.newaxis, :, 2]
        centre = tf.linalg.matmul(centre, linear_part, transpose_b=True) + offset
        # Half the size of the box around the moved corners.
        half_size = tf.linalg.matmul(half_size, tf.abs(linear_part), transpose_b=True)
        # Clip the box to the image; `visible` is the share of its area that is left after all moves.
        low, high = (tf.clip_by_value(corner, 0.0, 1.0) for corner in (centre - half_size, centre + half_size))
        visible *= tf.math.divide_no_nan(tf.reduce_prod(high - low, axis=2), tf.reduce_prod(2 * half_size, axis=2))
    has_area = tf.reduce_all(high - low > _ROUNDING, axis=2)
    return tf.concat([low, high], axis=2), has_area & (visible >= least_visible - _ROUNDING)

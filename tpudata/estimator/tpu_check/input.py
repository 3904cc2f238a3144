"""Rehearsal of the input: check that input_fn can feed the cores of a TPU."""

import itertools
from collections.abc import Sequence

import tensorflow as tf

from tpudata.console.tables import count_text
from tpudata.estimator.api.findings import Report
from tpudata.estimator.api.mode_keys import ModeKeys
from tpudata.estimator.feeding.deployment import Deployment
from tpudata.estimator.feeding.signature import list_leaves, split_element
from tpudata.tensor_types import Specs

# Dtypes that a TPU does not have, and dtypes that it computes slowly.
_ABSENT_DTYPES = (tf.string, tf.complex128, tf.variant, tf.resource)
_SLOW_DTYPES = (tf.int64, tf.uint64, tf.float64)


def check_input(
    element_spec: Specs, deployment: Deployment, batch_axis: Sequence[int] | None, report: Report
) -> tuple[Specs, Specs]:
    """Check the elements of input_fn's dataset, and return the specs of the part of one core.

    Args:
        element_spec: spec of the elements.
        deployment: deployment of the mode.
        batch_axis: axis of the rows for each tensor; None for axis 0.
        report: function that adds a finding.

    Returns:
        The `tf.TensorSpec` structures of one core's (features, labels), with a known number of rows; other unknown sizes remain
        unknown.
    """
    axes = tf.nest.pack_sequence_as(element_spec, _list_axes(element_spec, batch_axis))
    specs, axes = split_element(element_spec), split_element(axes)
    if deployment.mode == ModeKeys.PREDICT:  # model_fn gets no labels.
        specs, axes = (specs[0], None), (axes[0], None)
    # tf.nest passes no paths, so the leaves are numbered to find theirs.
    next_indices = itertools.count()
    leaf_indices = tf.nest.map_structure(lambda _: next(next_indices), specs)
    paths = {leaf_index: path for path, leaf_index in list_leaves(leaf_indices)}

    def make_core_spec(leaf_index: int, spec: tf.TensorSpec | None, axis: int) -> tf.TensorSpec | None:
        """Check the spec of a tensor, and return its spec on one core; None stays None."""
        if spec is None:
            return None
        _check_dtype(paths[leaf_index], spec, report)
        return tf.TensorSpec(_find_core_shape(paths[leaf_index], spec, axis, deployment, report), spec.dtype)

    core_specs: tuple[Specs, Specs] = tf.nest.map_structure(make_core_spec, leaf_indices, specs, axes)
    return core_specs


def _list_axes(element_spec: Specs, batch_axis: Sequence[int] | None) -> list[int]:
    """Return the axis of the rows for each tensor of an element; 0 without batch_axis, or if it is too short."""
    num_tensors = len(tf.nest.flatten(element_spec))
    axes = [] if batch_axis is None else list(batch_axis)[:num_tensors]
    return axes + [0] * (num_tensors - len(axes))


def _check_dtype(path: str, spec: tf.TensorSpec, report: Report) -> None:
    """Report a dtype that a TPU does not have or computes slowly."""
    if spec.dtype in _ABSENT_DTYPES:
        fix = "decode it, look it up or omit it in input_fn, which runs on the host"
        report(path, f"its dtype is {spec.dtype.name}, which a TPU does not have", fix)
    elif spec.dtype in _SLOW_DTYPES:
        smaller = "float32" if spec.dtype.is_floating else "int32"
        report(
            path,
            f"its dtype is {spec.dtype.name}, which a TPU makes of two numbers of 32 bits: slow, and twice the bytes",
            f"tf.cast to {smaller} in the dataset's map",
            is_rejected=False,
        )


def _find_core_shape(
    path: str, spec: tf.TensorSpec, axis: int, deployment: Deployment, report: Report
) -> list[int | None]:
    """Report a shape that is not static or cannot be split over cores; return the shape on one core.

    Args:
        path: path of the tensor, such as "features['image']", for messages.
        spec: spec of the tensor in input_fn's dataset.
        axis: axis of the rows.
        deployment: deployment of the mode.
        report: function that adds a finding.
    """
    shape = list(spec.shape.as_list())
    if not shape:
        report(
            path,
            "it is a scalar, without rows to split over the cores",
            "batch the dataset; pass a number that is the same for all in params",
        )
        return shape
    if not 0 <= axis < len(shape):
        report(
            path,
            f"it has the shape {spec.shape}, and batch_axis names its axis {axis}",
            "name the axis of the rows, counted from 0",
        )
        return shape
    size = deployment.batch_size
    num_rows = shape[axis]
    if num_rows is None and deployment.mode != ModeKeys.PREDICT:  # PREDICT pads short batches.
        report(
            path,
            f"it has the shape {spec.shape}: the number of rows in a batch is not static",
            "use batch(..., drop_remainder=True), or tpudata.make_input_fn, which pads the last batch with rows of weight 0",
        )
    elif num_rows is not None and num_rows != size:
        report(
            path,
            f"it has the shape {spec.shape}, with {count_text(num_rows, 'row')} instead of params['batch_size']={size}",
            "batch the dataset by params['batch_size']",
        )
    unknown_axes = [index for index, length in enumerate(shape) if length is None and index != axis]
    if unknown_axes:
        report(
            path,
            f"it has the shape {spec.shape}: its size along axis {', '.join(map(str, unknown_axes))} changes from batch to batch",
            "pad or crop it to one size in the dataset's map, or use set_shape if it is always the same",
        )
    shape[axis] = deployment.model_batch_size
    return shape

"""Predictions: N rows in, N rows out."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tpudata.estimator._errors import ModelFnValueError
from tpudata.estimator._evaluation import find_checkpoint
from tpudata.estimator._mode_keys import ModeKeys
from tpudata.estimator._program import PredictProgram
from tpudata.estimator._runtime import Runtime
from tpudata.estimator._signature import leaves, row_weights


def predict(
    runtime: Runtime,
    input_fn: Any,
    predict_keys: Sequence[str] | str | None,
    checkpoint_path: str | None,
    yield_single_examples: bool,
) -> Iterator[Any]:
    """Predict as `TPUEstimator.predict` says."""
    checkpoint = find_checkpoint(runtime, checkpoint_path)
    dataset = with_row_masks(runtime.dataset(input_fn, ModeKeys.PREDICT), runtime.batch_sizes[ModeKeys.PREDICT])
    program: PredictProgram = runtime.program(ModeKeys.PREDICT, (dataset.element_spec[0], None))
    keys = _selected_keys(program.spec.predictions, predict_keys)
    for features, mask in dataset:
        # Between two batches the caller may have trained: the predictions stay those of one checkpoint.
        runtime.store.load(program.blueprint, program.saved, checkpoint)
        batch = tf.nest.map_structure(lambda tensor: tensor.numpy(), program.run(features))
        batch = {key: batch[key] for key in keys} if keys is not None else batch
        kept = mask.numpy()
        for path, array in leaves((batch, None)):
            if np.ndim(array) == 0 or len(array) != len(kept):
                name = path.replace("features", "predictions", 1)
                raise ModelFnValueError(
                    f"{name} has shape {np.shape(array)}: a prediction needs a row for each of the batch's {len(kept)}."
                )
        batch = tf.nest.map_structure(lambda array, kept=kept: array[kept], batch)
        if not yield_single_examples:
            yield batch
            continue
        for row in range(int(kept.sum())):
            yield tf.nest.map_structure(lambda array, row=row: array[row], batch)


def _selected_keys(predictions: Any, predict_keys: Sequence[str] | str | None) -> list[str] | None:
    if predict_keys is None:
        return None
    if not isinstance(predictions, Mapping):
        raise ValueError("predict(predict_keys=...) needs a model_fn whose predictions are a dict.")
    wanted = [predict_keys] if isinstance(predict_keys, str) else list(predict_keys)
    found = [key for key in predictions if key in wanted]
    if not found:
        raise ValueError(f"predict(predict_keys={wanted}) selects nothing: model_fn predicts {sorted(predictions)}.")
    return found


def with_row_masks(dataset: Any, batch_size: int | None) -> Any:
    """Drop the labels, pad short batches to `batch_size` and tell which rows are real.

    Args:
        dataset: of features or (features, labels).
        batch_size: the static size; None leaves batches as they are.

    Returns:
        A dataset of (features, bool [batch]); a row is real where it is no padding made here and where
        features["weights"], if there, is not 0.
    """

    def prepare(*parts: Any) -> tuple[Any, Any]:
        features = parts[0]
        batched = [tensor for _, tensor in leaves((features, None)) if tensor.shape.rank]
        if not batched:
            raise ValueError("predict: input_fn gave features without a batch dimension: batch the dataset.")
        rows = tf.shape(batched[0])[0]
        if batch_size is not None and any(tensor.shape[0] is None for tensor in batched):
            message = f"predict: input_fn gave a batch of more rows than predict_batch_size={batch_size}"
            with tf.control_dependencies([tf.debugging.assert_less_equal(rows, batch_size, message)]):
                missing = batch_size - rows
            features = tf.nest.map_structure(lambda tensor: _pad(tensor, missing, batch_size), features)
        first = next(tensor for _, tensor in leaves((features, None)) if tensor.shape.rank)
        mask = tf.range(tf.shape(first)[0]) < rows
        weights = row_weights(features)
        if weights is not None:
            mask &= weights > 0
        return features, mask

    return dataset.map(prepare).prefetch(1)


def _pad(tensor: Any, missing: Any, batch_size: int) -> Any:
    if not tensor.shape.rank:
        return tensor
    shape = tf.shape(tensor)
    # tf.zeros also makes empty strings; tf.pad takes no strings.
    padded = tf.concat([tensor, tf.zeros(tf.concat([[missing], shape[1:]], 0), tensor.dtype)], 0)
    return tf.ensure_shape(padded, [batch_size, *tensor.shape[1:]])

"""`make_input_fn`: from a dataset on disk to the function that a trainer calls for its batches."""

from __future__ import annotations

import operator
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Protocol

import tensorflow as tf

from tpudata.errors import UsageError
from tpudata.format import open_dataset
from tpudata.input.cache import plan_cache
from tpudata.input.fields import select_fields
from tpudata.input.pipeline import Options, Pipeline
from tpudata.input.source import check_shards

# TensorFlow numbers the rows of a batch in int32.
_MAX_BATCH = 2**31 - 1


class InputFn(Protocol):
    """What `make_input_fn` returns."""

    def __call__(self, params: Mapping[str, Any], input_context: Any = None) -> tf.data.Dataset:
        """Makes the dataset for `params["batch_size"]`."""


def make_input_fn(
    data_dir: str | os.PathLike[str],
    split: str,
    *,
    training: bool,
    features: str | None = None,
    extra_features: Sequence[str] = (),
    image_size: tuple[int, int] | None = None,
    dtype: tf.DType | str = "uint8",
    transform: Callable[..., Any] | None = None,
    shuffle_buffer: int | None = None,
    seed: int | None = None,
    cache: bool | str | os.PathLike[str] = False,
    weights: Literal["feature", "sample_weight"] = "feature",
) -> InputFn:
    """Makes an input_fn that feeds a split of a dataset in batches of one static shape.

    `input_fn(params, input_context=None)` returns a `tf.data.Dataset` of (features, labels), B = `params["batch_size"]`:

    - features: a dict of tensors [B, ...]: `image` uint8 [B, height, width, channels] for the layouts imagenet and raw, `text`
      string [B] for text. int64 leaves as int32.
    - labels: int32 [B], as stored. A dataset without labels yields features alone.

    With `training=True` the dataset never ends: every epoch takes the shards in another order and mixes the records in a
    window; batches run across the ends of epochs, so that no record is dropped. With `training=False` it is one exact pass in the
    dataset's order; the last batch is padded with copies of its last record, and `features["weights"]`, float32 [B], is
    1 for records and 0 for padding.

    Args:
        data_dir: the dataset's folder.
        split: name of the split, such as "train".
        training: shuffle and repeat, or one exact pass.
        features: name of one feature, such as "image", to yield as a bare tensor in place of the dict. In evaluation it leaves no
            place for `features["weights"]`: then pass `weights="sample_weight"`, or a batch size that divides the records.
        extra_features: further features of the records to yield under their full names, such as "image/filename".
        image_size: (height, width) to resize encoded images to (bilinear, antialiased, aspect ratio not kept). Needed where
            sizes vary.
        dtype: of uint8 features such as images: "uint8", as stored, is a quarter of what float32 takes on the way to the
            device; the model then normalises. "float32", "bfloat16" and "float16" yield values 0 to 1.
        transform: `transform(features, labels)` (or `transform(features)` where there are no labels), called in
            `tf.data.Dataset.map` with single records, before they are batched; returns (features, labels), or features
            where there are no labels.
        shuffle_buffer: length of the shuffle's window in records, 1 for none. By default all records where they are cached in
            memory, otherwise as many as fit 256 MiB as stored, and at least 1,024.
        seed: the same seed gives the same batches in every dataset that is made; None another order each time. A trainer
            that makes a dataset anew for every round of training and evaluation then starts each round with the same batches.
        cache: keeps decoded records after the first pass, before `transform`: True in memory, "auto" in memory where they take
            at most a quarter of what is free, or the path of a local folder. In memory, all datasets of this input_fn
            share them. From a folder, training mixes records within its window only.
        weights: where evaluation puts the weights: "feature" in `features["weights"]`; "sample_weight" yields
            (features, labels, weights), as Keras takes it.

    Returns:
        The input_fn.

    Raises:
        DatasetError: no complete dataset, no such split, a shard missing (or damaged: CorruptionError).
        FeatureError: a feature is not there or has no static shape.
        UsageError: an argument is out of range or does not fit the dataset.
        MissingExtraError: TensorFlow is not installed.

    A record that is damaged in the middle of a file ends the iteration with a `tf.errors.UnknownError` that tells file and offset.
    """
    dataset = open_dataset(_checked_folder(data_dir))
    options = Options(training, _dtype_name(dtype), features is not None, transform, shuffle_buffer, seed, weights)
    if not isinstance(split, str):
        raise UsageError(f"split={split!r}: pass the name of one split, such as 'train'.")
    if isinstance(extra_features, str):
        raise UsageError(f"extra_features={extra_features!r}: pass a sequence of names, such as ({extra_features!r},).")
    if not isinstance(extra_features, Sequence) or not all(isinstance(name, str) for name in extra_features):
        raise UsageError(f"extra_features={extra_features!r}: pass a sequence of names, such as ('image/filename',).")
    if features is not None and extra_features:
        raise UsageError(f"features={features!r} asks for a bare tensor, which has no place for extra_features.")
    fields = select_fields(dataset.manifest, only=features, extra=extra_features, image_size=_checked_size(image_size))
    if options.dtype != "uint8" and not any(field.feature.dtype == "uint8" for field in fields.inputs):
        raise UsageError(f"dtype={options.dtype}: it is of images, and the features have none. Leave it out.")
    if weights == "sample_weight" and fields.label is None:
        raise UsageError('weights="sample_weight": (features, labels, weights) needs labels, and the dataset has none.')
    check_shards(dataset, split)
    plan = plan_cache(cache, split, dataset.manifest.split(split), fields)
    pipeline = Pipeline(dataset, split, fields, options, plan)

    def input_fn(params: Mapping[str, Any], input_context: Any = None) -> tf.data.Dataset:
        """Makes the dataset; see `make_input_fn`.

        Raises:
            UsageError: no batch size, one that cannot be used, or more than one input pipeline.
        """
        batch_size = _batch_size(params)
        _check_one_host(params, input_context)
        return pipeline.batches(batch_size)

    return input_fn


def _checked_folder(data_dir: str | os.PathLike[str]) -> str:
    folder = os.fspath(data_dir) if isinstance(data_dir, (str, os.PathLike)) else None
    if not isinstance(folder, str) or not folder:
        raise UsageError(f"data_dir={data_dir!r}: pass the path of the dataset's folder.")
    return folder


def _dtype_name(dtype: tf.DType | str) -> str:
    try:
        return str(tf.as_dtype(dtype).name)
    except TypeError:
        return repr(dtype)  # Options refuses it, with what is allowed.


def _checked_size(image_size: tuple[int, int] | None) -> tuple[int, int] | None:
    if image_size is None:
        return None
    try:
        height, width = (operator.index(size) for size in image_size)
    except (TypeError, ValueError):
        raise UsageError(f"image_size={image_size!r}: pass (height, width).") from None
    if height < 1 or width < 1:
        raise UsageError(f"image_size={image_size!r}: height and width are 1 or more.")
    return height, width


def _batch_size(params: Mapping[str, Any]) -> int:
    if not isinstance(params, Mapping):
        raise UsageError(f'params is {params!r}; pass a dict, such as {{"batch_size": 128}}.')
    size = params.get("batch_size")
    if size is None:
        raise UsageError(
            'params has no "batch_size". Call input_fn({"batch_size": 128}), or give the trainer a batch size.'
        )
    if isinstance(size, bool) or not hasattr(size, "__index__") or not 1 <= operator.index(size) <= _MAX_BATCH:
        raise UsageError(f'params["batch_size"] is {size!r}; allowed is an integer from 1 to 2**31 - 1.')
    return operator.index(size)


def _check_one_host(params: Mapping[str, Any], input_context: Any) -> None:
    pipelines = max(
        getattr(input_context, "num_input_pipelines", 1),
        getattr(params.get("context"), "num_hosts", 1),
    )
    if pipelines > 1:
        raise UsageError(
            f"{pipelines} input pipelines (hosts) were asked for; this version feeds one, and each would get all records. Train on"
            " one host."
        )

"""`make_input_fn`: from a dataset on disk to the function that a trainer calls for its batches."""

from __future__ import annotations

import dataclasses
import functools
import logging
import operator
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Protocol

import tensorflow as tf

from tpudata._gcs_blocks import warn_of_large_blocks
from tpudata.errors import TpudataError, UsageError
from tpudata.input.dataset.first_record import check_first_record
from tpudata.input.dataset.open_data import Data, check_plain, fields_of, open_data
from tpudata.input.dataset.plain_dataset import PlainDataset
from tpudata.input.dataset.record_files import TFRecordFiles
from tpudata.input.graph.bucket_pipeline import BucketPipeline
from tpudata.input.graph.cache import plan_cache
from tpudata.input.graph.pipeline import BATCHES_AHEAD, Pipeline
from tpudata.input.image.augment import RandAugment
from tpudata.input.image.crop import CentreCrop, TrainCrop
from tpudata.input.image.mix import CutMix, MixUp
from tpudata.input.image.normalize import Normalize
from tpudata.input.maps import PARALLEL, as_written
from tpudata.input.options.hosts import find_rows
from tpudata.input.options.image_options import ImageOptions
from tpudata.input.options.options import Options
from tpudata.input.options.service import DataService
from tpudata.input.text.sequence import SequenceOptions
from tpudata.input.text.token_names import TokenNames, check_token_names, renamed

# TensorFlow numbers the rows of a batch in int32.
_MAX_BATCH = 2**31 - 1
# Records that are fed before a step are counted in int64; buckets of short records have larger batches.
_MAX_POSITION = 2**53
# Pixels of a side.
_MAX_SIZE = 16384
_log = logging.getLogger("tpudata")


class InputFn(Protocol):
    """What `make_input_fn` returns."""

    def __call__(self, params: Mapping[str, Any], input_context: Any = None, start_step: int = 0) -> tf.data.Dataset:
        """Makes the dataset for `params["batch_size"]`, from a step on."""


def make_input_fn(
    data: Data,
    split: str | None = None,
    *,
    training: bool,
    features: str | None = None,
    extra_features: Sequence[str] = (),
    image_size: tuple[int, int] | None = None,
    crop: TrainCrop | CentreCrop | None = None,
    augment: RandAugment | None = None,
    normalize: Normalize | None = None,
    dtype: tf.DType | str = "uint8",
    mix: MixUp | CutMix | None = None,
    transpose: str | None = None,
    sequence_length: int | None = None,
    buckets: tuple[int, ...] | None = None,
    truncate: bool = False,
    pad_id: int | None = None,
    targets: bool | None = None,
    token_names: TokenNames | None = None,
    parse: Callable[..., Any] | None = None,
    transform: Callable[..., Any] | None = None,
    shuffle_buffer: int | None = None,
    seed: int | None = None,
    cache: bool | str | os.PathLike[str] = False,
    weights: Literal["feature", "sample_weight"] = "feature",
    service: DataService | None = None,
) -> InputFn:
    """Makes an input_fn that feeds a split of a dataset in batches of one static shape.

    `input_fn(params, input_context=None, start_step=0)` returns a `tf.data.Dataset` of (features, labels), where B is
    `params["batch_size"]`:

    - features: a dict of tensors [B, ...]: `image` uint8 [B, height, width, channels] for the layouts imagenet and raw, `text`
      string [B] for text. int64 leaves as int32.
    - labels: int32 [B], as stored. A dataset without labels yields features alone.

    With `training=True` the dataset never ends: every epoch takes the records in another order; batches run across the ends of
    epochs, so that no record is dropped. With `training=False` it is one exact pass in the dataset's order; the last batch is
    padded with copies of its last record, and `features["weights"]`, float32 [B], is 1 for records and 0 for padding.

    On several hosts each feeds its rows of a global batch, whatever the number of shards. With a `tf.distribute.InputContext` the
    global batch has B rows for each of its `num_replicas_in_sync`; with the original estimator's context in `params["context"]`, B
    rows for each call of input_fn. Which records a global batch has depends on the seed, its number and its size, and not on
    the number of hosts. In evaluation all hosts have the same number of batches, if need be of padding alone.

    With `start_step=k` the dataset begins where k global batches were taken, with the same bytes as if it had not stopped. That
    costs a seek: no more is read than for the first batch of all.

    Args:
        data: the dataset's folder; or files without a manifest, as `TFRecordFiles`, `FixedLengthRecordFiles` or `TextLineFiles`.
        split: name of the split, such as "train"; none for files.
        training: shuffle and repeat, or one exact pass.
        features: name of one feature, such as "image", to yield as a bare tensor in place of the dict. In evaluation it leaves no
            place for `features["weights"]`: then pass `weights="sample_weight"`, or a batch size that divides the records.
        extra_features: further features of the records to yield under their full names, such as "image/filename".
        image_size: (height, width) to resize encoded images to (bilinear, antialiased, aspect ratio not kept). Needed where
            sizes vary, unless `crop` is given.
        crop: `TrainCrop(224)` takes a random window of each image, `CentreCrop(224)` the middle; of a JPEG no more is decoded.
        augment: `RandAugment()` augments each image after its crop. Training only.
        normalize: `Normalize.imagenet()`, or other means and deviations; gives floats, so it goes with a `dtype`.
        dtype: of uint8 features such as images: "uint8", as stored, is a quarter of what float32 takes on the way to the
            device; the model then normalises. "float32", "bfloat16" and "float16" yield values 0 to 1, or normalised ones.
        mix: `MixUp()` or `CutMix()` mixes each image of a batch with another one of it; labels become shares of the classes,
            float32 [B, classes]. Training only.
        transpose: order of the axes of a batch of images, N (images), H, W and C: "HWCN" is what a TPU lays out without moving
            anything. The model turns them back, and the batch is no longer the first axis.
        sequence_length: pads every record's token ids (layout tokens) to so many, int32 [B, sequence_length], with a mask,
            int32 of 1 for tokens and 0 for padding: `features["attention_mask"]` for `input_ids`, otherwise "NAME_mask" for
            "NAME_ids"; a mask that is stored stays. Masks, token_type_ids, segment_ids and positions have 0 for padding. A longer
            record is an error.
        buckets: several such lengths, ascending, such as (64, 128, 256). All records of a batch are of one bucket, the smallest
            that takes them. B is the batch of the longest; one of L tokens has B times longest // L rows. The shapes in
            `element_spec` are None where batches differ. The first call of input_fn reads all records once, to learn their lengths.
        truncate: cut records that are longer, instead of an error.
        pad_id: stands for a token in padding; None takes the tokenizer's from the manifest, or else 0.
        targets: labels are the token after each one of `input_ids`, int32 [B, L], and `features["token_weights"]`, float32
            [B, L], is 1 where there is one; 0 at the end of a row, a packed document or the text, in padding, and in
            evaluation's padded rows. By default for the layouts sequences and packed, unless `features` is given.
        token_names: "maxtext" or "t5x" yields one dict without labels, under the names and conventions of that project's trainer,
            such as `inputs`, `inputs_segmentation` and `targets`: docs/feed_text.md has them all.
        parse: `parse(records)` takes records apart, of any kind: it gets a batch of them, string [n], and returns features, or
            (features, labels), tensors [n, ...] of static shapes. No other argument then says what is read of a record.
        transform: `transform(features, labels)` (or `transform(features)` where there are no labels), called in
            `tf.data.Dataset.map` with single records, their images cropped and scaled, before they are batched; returns
            (features, labels), or features where there are no labels. Where it has an argument named `seed`, it gets int32 [2]
            for `tf.random.stateless_*` and `tf.image.stateless_*`: another one for each record and epoch, the same one after a
            restart and on any host.
        shuffle_buffer: how many records are held to be mixed, over all hosts, 1 for no more than the chunks' order. By default as
            many as fit 96 MiB as stored, and at least 1,024. If all fit, an epoch is a true permutation. Otherwise chunks of 0.5 to
            1 MB (of tokens 2 to 4 MB, of gzip at least 64 records) are permuted, and the records in a window over 32 places of that
            order.
        seed: the same seed gives the same batches, with and without a cache; None draws one here, and logs it.
        cache: keeps decoded records, before `transform` and all that is drawn; with `crop`, images as they are stored. True in
            memory, "auto" in memory if they take at most a quarter of what is free, or the path of a local folder. In memory, they
            are decoded when the first batch is asked for; into a folder, by the first call of input_fn. All datasets of this
            input_fn share them.
        weights: where evaluation puts the weights: "feature" in `features["weights"]`; "sample_weight" yields
            (features, labels, weights); with targets in training too, the tokens' weights. For Keras, see `as_keras`.
        service: `DataService("grpc://HOST:PORT", workers=8)` has the workers of a tf.data service read, decode and batch the
            records, in the same order. They need the same paths, and `parse` and `transform` without Python functions.

    Returns:
        The input_fn.

    Raises:
        DatasetError: no complete dataset, no such split, a shard missing (or damaged: CorruptionError).
        FeatureError: a feature is not there or has no static shape; of `TFRecordFiles`, the first record has another one.
        UsageError: an argument is out of range or does not fit the dataset.
        MissingExtraError: TensorFlow is not installed.

    A damaged record ends the iteration with a `tf.errors.DataLossError`, and one that is not as its features say with a
    `tf.errors.InvalidArgumentError`. `as_numpy` and the commands raise CorruptionError, which names file and offset, DatasetError
    and FeatureError in their places.

    The dataset is a graph without Python: it runs where TensorFlow places it, such as on a host of a pod or a tf.data service, and
    `tf.train.Checkpoint(iterator=...)` saves and restores its iterators.
    """
    options = Options(
        training=training,
        images=ImageOptions(crop, augment, normalize, _dtype_name(dtype), mix, transpose),
        bare=features is not None,
        parse=parse,
        transform=transform,
        shuffle_buffer=shuffle_buffer,
        seed=_drawn_seed() if seed is None else seed,
        weights=weights,
        service=service,
    )
    asked = SequenceOptions(sequence_length, buckets, truncate, pad_id, targets)
    if isinstance(extra_features, str):
        raise UsageError(f"extra_features={extra_features!r}: pass a sequence of names, such as ({extra_features!r},).")
    if not isinstance(extra_features, Sequence) or not all(isinstance(name, str) for name in extra_features):
        raise UsageError(f"extra_features={extra_features!r}: pass a sequence of names, such as ('image/filename',).")
    if features is not None and extra_features:
        raise UsageError(f"features={features!r} asks for a bare tensor, which has no place for extra_features.")
    if image_size is not None and crop is not None:
        raise UsageError(f"image_size={image_size}: crop={crop} has a size of its own. Leave one of them out.")
    dataset, split = open_data(data, split)
    warn_of_large_blocks(dataset.shard_path(dataset.manifest.split(split).shards[0]))
    if isinstance(dataset, PlainDataset):
        check_plain(cache)
    fields = fields_of(
        dataset,
        is_parsed_by_user=parse is not None,
        only=features,
        extra=extra_features,
        image_size=_checked_size(image_size),
        keep_encoded=crop is not None,
        sequences=asked,
    )
    options.images.check_fields(fields)
    sequences = asked.sequences(dataset.manifest, fields, options.bare)
    options = dataclasses.replace(options, sequences=sequences)
    check_token_names(token_names, sequences, weights)
    if weights == "sample_weight" and fields.label is None and sequences.targets is None and parse is None:
        raise UsageError('weights="sample_weight": (features, labels, weights) needs labels, and the dataset has none.')
    if asked.buckets is not None and cache not in (False, "auto"):
        raise UsageError(
            f"cache={cache!r}: with buckets nothing is cached but what fits the window. Leave one of them out."
        )
    kept = cache if asked.buckets is None else False
    plan = plan_cache(kept, dataset, split, fields)
    if isinstance(dataset, PlainDataset) and isinstance(dataset.files, TFRecordFiles) and parse is None:
        check_first_record(dataset, fields)
    whole = Pipeline(dataset, split, fields, options, plan)
    pipeline = whole if asked.buckets is None else BucketPipeline(whole, fields, options, asked.buckets)
    if training and seed is None:
        _log.info("%s: shuffling %r with seed=%d, drawn at random.", dataset.path, split, options.seed)

    def input_fn(params: Mapping[str, Any], input_context: Any = None, start_step: int = 0) -> tf.data.Dataset:
        """Makes the dataset; see `make_input_fn`.

        Raises:
            UsageError: no batch size or one that cannot be used, a start_step that is none, or hosts that do not fit each other.
        """
        rows = find_rows(_batch_size(params), params, _checked_context(input_context))
        first = _checked_step(start_step, rows.total)
        try:
            batches = pipeline.batches(rows, first)
            if token_names is None:
                return batches
            named = functools.partial(renamed, names=token_names)
            return batches.map(as_written(named), **PARALLEL).prefetch(BATCHES_AHEAD)
        except TpudataError as error:
            raise _without_traceback(error) from None

    return input_fn


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
    if not 1 <= height <= _MAX_SIZE or not 1 <= width <= _MAX_SIZE:
        raise UsageError(f"image_size={image_size!r}: height and width are 1 or more, and {_MAX_SIZE} at most.")
    return height, width


def _drawn_seed() -> int:
    return int.from_bytes(os.urandom(4), "little")


def _checked_step(start_step: int, batch_size: int) -> int:
    if not _is_integer(start_step) or operator.index(start_step) < 0:
        raise UsageError(f"start_step={start_step!r}: pass the number of steps that are done, an integer of 0 or more.")
    if operator.index(start_step) * batch_size > _MAX_POSITION:
        raise UsageError(
            f"start_step={start_step}: with a global batch of {batch_size} it is {_MAX_POSITION // batch_size} at most. Pass the"
            " number of steps that are done."
        )
    return operator.index(start_step)


def _checked_context(input_context: Any) -> Any:
    names = ("num_input_pipelines", "input_pipeline_id", "num_replicas_in_sync")
    if input_context is not None and not all(_is_integer(getattr(input_context, name, None)) for name in names):
        raise UsageError(
            f"input_context={input_context!r}: pass a tf.distribute.InputContext, of which {', '.join(names)} are integers."
        )
    return input_context


def _is_integer(value: Any) -> bool:
    return hasattr(value, "__index__") and not isinstance(value, bool)


def _without_traceback(error: TpudataError) -> TpudataError:
    """The error in its one line: where transform and parse are converted, AutoGraph puts its own traceback before that."""
    message = str(error)
    if not message.startswith("in user code:"):
        return error
    return type(error)(message.rpartition(f"{type(error).__name__}: ")[2].strip())


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

"""`make_input_fn` makes the function that a trainer calls for batches of a dataset on disk."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, TypeVar

import numpy.typing as npt
import tensorflow as tf

from tpudata.checks import check_argument
from tpudata.input.files.open_data import Data, open_data
from tpudata.input.graph.pipelines.bucket_pipeline import BucketPipeline
from tpudata.input.graph.pipelines.filtered_pipeline import FilteredPipeline
from tpudata.input.graph.pipelines.pipeline import Pipeline, SplitPipeline
from tpudata.input.input_fn import InputFn
from tpudata.input.options.columns import FeatureOptions
from tpudata.input.options.images import Images
from tpudata.input.options.options import Options
from tpudata.input.options.pad import Pad
from tpudata.input.options.reading import Reading
from tpudata.input.options.service import DataService
from tpudata.input.options.tokens import Tokens
from tpudata.input.request import InputRequest, resolve_request
from tpudata.tensor_types import Element

_OptionGroup = TypeVar("_OptionGroup")
_log = logging.getLogger("tpudata")


def make_input_fn(
    data: Data,
    split: str | None = None,
    *,
    training: bool,
    features: str | None = None,
    extra_features: Sequence[str] = (),
    pad: Mapping[str, int | Pad | None] | None = None,
    label: str | None = None,
    defaults: Mapping[str, npt.ArrayLike] | None = None,
    weight: str | None = None,
    images: Images | None = None,
    tokens: Tokens | None = None,
    parse: Callable[..., Element] | None = None,
    filter: Callable[..., bool | tf.Tensor] | None = None,
    transform: Callable[..., Element] | None = None,
    batch_transform: Callable[..., Element] | None = None,
    shuffle: bool | int | None = None,
    num_epochs: int | None = None,
    seed: int | None = None,
    cache: bool | str | os.PathLike[str] = False,
    weights: Literal["feature", "sample_weight"] = "feature",
    service: DataService | None = None,
    reading: Reading | None = None,
) -> InputFn:
    """Make an input_fn that feeds a split of a dataset in batches of one static shape.

    `input_fn(params, input_context=None, start_step=0, *, host_index=None, host_count=None)` returns a `tf.data.Dataset` of
    (features, labels), where B is `params["batch_size"]`:

    - features: a dict of tensors [B, ...]: `image` uint8 [B, height, width, channels] for the layouts imagenet and raw, `text`
      string [B] for text. int64 becomes int32.
    - labels: int32 [B], as stored; see `label` for others. A dataset without labels yields only features.

    With `training=True` the dataset never ends, unless `num_epochs` is given: every epoch has a different order of the records;
    batches run across the ends of epochs, so that no record is dropped. With `training=False` it is one exact pass in the
    dataset's order; the last batch is padded with copies of its last record, and `features["weights"]`, float32 [B], is 1 for
    records and 0 for padding.

    On several hosts, each feeds its rows of a global batch, for any number of shards. With `host_index=` and `host_count=` B is
    the global batch, and each host gets an equal share of it. With a `tf.distribute.InputContext` the
    global batch has B rows for each of its `num_replicas_in_sync`; with the context of TensorFlow's TPUEstimator in
    `params["context"]`, B rows for each call of input_fn. The records of a global batch depend on the seed, its number and its
    size, not on the number of hosts. In evaluation all hosts have the same number of batches; some may be padding only.

    With `start_step=k` the dataset begins after k global batches, with the same bytes as an uninterrupted one. This costs a
    seek: no more is read than for the first batch.

    Args:
        data: the dataset's folder; or files without a manifest, as `TFRecordFiles`, `FixedLengthRecordFiles` or `TextLineFiles`.
        split: name of the split, such as "train"; None for files.
        training: whether to shuffle and repeat the records, instead of one exact pass.
        features: name of one feature, such as "image", to yield as a bare tensor in place of the dict. In evaluation it leaves no
            place for `features["weights"]`: then pass `weights="sample_weight"`, or a batch size that divides the records.
        extra_features: further features of the records to yield under their full names, such as "image/filename".
        pad: entries to feed of lists whose length varies, by the name of a feature, or by a pattern for several:
            `{"image/object/*": 100, "caption": tpudata.Pad(5, cut=True)}`. They are fed under their full names, [B, entries, ...],
            filled up with 0, 0.0 or b"", next to the number of real ones, int32 [B], under the name without wildcards:
            `image/object/count`, `caption/count`. In a record, the features of a pattern have equally many entries; boxes and
            points among them move with the image. A missing list counts as an empty one; a longer one is an error, unless
            `Pad` cuts it. None in place of a number stands for the length of the dataset's longest list; lists that are fed without
            a key here are also padded to this length, if the manifest gives it.
        label: name of the feature that is yielded as labels: integers or floats of any static shape, int32 or float32 [B, ...]; or
            a list of a schema with `num_classes`, float32 [B, classes] of 1 for each class of the record and 0 for others. None
            for `image/class/label` or `label`.
        defaults: values of features that a record may lack, by their full names, such as `{"age": -1}`: one for all entries, or an
            array of the feature's shape. Other features that a record lacks are an error.
        weight: name of the feature that is the weight of each record, one number of 0 or more. It is yielded in training and
            evaluation, as `weights` chooses, float32 [B]; in evaluation 0 is fed as 2**-126, since 0 stands for padding. With next
            tokens as targets it also multiplies their weights.
        images: `Images(...)`: how images are resized, cropped, augmented, scaled, mixed and laid out.
        tokens: `Tokens(...)`: how sequences of tokens are padded, bucketed and turned into inputs and targets.
        parse: `parse(records)` parses records of any kind: it gets a batch of them, string [n], and returns features, or (features,
            labels), tensors [n, ...] of static shapes. The other arguments that select features are then not allowed.
        filter: `filter(features)` returns whether a record is fed, one bool. It gets a dict of the record's features by their full
            names, as stored: images encoded, int64 as int64, lists of any length as [n]. With `parse`, it gets the result of
            `parse`. The first call of input_fn reads all records once; epochs, hosts and steps then count only the selected ones.
        transform: `transform(features, labels)` (or `transform(features)` if there are no labels), called in
            `tf.data.Dataset.map` with single records, their images cropped and scaled, before they are batched; returns
            (features, labels), or features if there are no labels. If it has an argument named `seed`, it gets int32 [2]
            for `tf.random.stateless_*` and `tf.image.stateless_*`: different for each record and epoch, the same after a restart
            and on any host.
        batch_transform: like `transform`, for whole batches, tensors [B, ...], mixed and transposed, before evaluation's weights
            are added; its seed differs for each batch. On several hosts a batch has the host's rows.
        shuffle: None shuffles in training. False takes the records in the dataset's order, again and again. A number is the
            records in the shuffle window over all hosts; 1 permutes chunks only; the default is as many as fit 96 MiB as
            stored, and at least 1,024 if these fit 1 GiB. If all fit, an epoch is a true permutation. Otherwise chunks
            (0.5 to 1 MB; tokens: 2 to 4 MB; gzip: at least 64 records) are permuted, the permuted order is cut into up to 32
            lanes that are read side by side, and the records of each lane are shuffled within its share of the window.
        num_epochs: number of epochs after which training ends, with the last whole batch; None for no end.
        seed: the same seed gives the same batches, with and without a cache; None draws one here, and logs it. If several
            processes feed one global batch, they need the same seed: a call for a part of the batch logs a warning.
        cache: keeps decoded records, before `transform` and all random steps; with `crop`, images stay encoded. True for memory,
            "auto" for memory if they take at most a quarter of what is free, or the path of a local folder. In memory, they
            are decoded at the first batch; into a folder, by the first call of input_fn. All datasets of this
            input_fn share them. For data in an object store, a folder instead keeps records as stored and is filled as they are
            read: each host keeps what it reads in every epoch, and its processes share the folder.
        weights: how the weights of evaluation, and of `weight`, are yielded: "feature" as `features["weights"]`; "sample_weight"
            as the third part of (features, labels, weights); if tokens have targets, `weights` are the tokens' weights, also in
            training. For Keras, see `as_keras`.
        service: `DataService("grpc://HOST:PORT", workers=8)` has the workers of a tf.data service read, decode and batch the
            records, in the same order. They need the same paths, and `parse` and `transform` without Python functions.
        reading: `Reading(...)`: how much is read at a time. From an object store, shards are read whole or in pieces of 64 MiB,
            and `shuffle` is by default as many records as fit 512 MiB, and at least 2,048 if these fit 1 GiB.

    Returns:
        The input_fn.

    Raises:
        DatasetError: there is no complete dataset or no such split, or a shard is missing.
        CorruptionError: a shard is damaged.
        StorageError: a file cannot be read, or a folder cannot be listed.
        FeatureError: a feature is missing or has no static shape; with `TFRecordFiles`, the first record differs from the features.
        UsageError: an argument is out of range or does not fit the dataset.
        MissingExtraError: TensorFlow is not installed.

    A damaged record ends the iteration with a `tf.errors.DataLossError`, and one that does not match its features, or a worker of
    `service` that was lost, with a `tf.errors.InvalidArgumentError`. A call of input_fn that reads all records also raises them.
    `as_numpy` and the commands raise a CorruptionError that names file and offset, a FeatureError or a DatasetError instead.

    The dataset is a graph without Python: it runs where TensorFlow places it, such as on a host of a pod or a tf.data service, and
    `tf.train.Checkpoint(iterator=...)` saves and restores its iterators.
    """
    options = Options(
        training=training,
        images=_resolve_group("images", images, Images),
        tokens=_resolve_group("tokens", tokens, Tokens),
        columns=FeatureOptions(
            features=features, extra_features=extra_features, pad=pad, label=label, defaults=defaults, weight=weight
        ),
        parse=parse,
        filter=filter,
        transform=transform,
        batch_transform=batch_transform,
        shuffle=shuffle,
        num_epochs=num_epochs,
        seed=int.from_bytes(os.urandom(4), "little") if seed is None else seed,
        has_drawn_seed=seed is None,
        cache=cache,
        weights=weights,
        service=service,
        reading=_resolve_group("reading", reading, Reading),
    )
    files = open_data(data, split)
    input_fn = build_input_fn(resolve_request(options, files))
    if training and seed is None:
        _log.info("%s: shuffling %r with seed=%d, drawn at random.", files.dataset.path, files.split, options.seed)
    return input_fn


def build_input_fn(request: InputRequest) -> InputFn:
    """Return the input_fn of a request.

    Raises:
        DatasetError: an index or a cache is damaged.
        UsageError: the cache, or the window of the shuffle, does not fit the memory or the disk.
    """
    options = request.options
    all_records = Pipeline.open(request)
    pipeline: SplitPipeline = all_records if options.filter is None else FilteredPipeline(all_records, request)
    return InputFn(
        pipeline if options.tokens.buckets is None else BucketPipeline(pipeline, request),
        training=options.training,
        is_endless=options.is_endless,
        mixes_rows=options.images.mix is not None or options.batch_transform is not None,
        weighs_records=options.weighs_records,
        token_names=options.tokens.names,
        has_drawn_seed=options.has_drawn_seed and options.training,
        row_axes=request.row_axes,
    )


def _resolve_group(name: str, group: _OptionGroup | None, group_class: type[_OptionGroup]) -> _OptionGroup:
    """Return a group of options, or `group_class()` for None; UsageError if the group is of another class.

    Args:
        name: the argument of `make_input_fn`, for the message.
        group: the group as the caller passed it.
        group_class: class of the group; its defaults are the options of a caller who passes none.
    """
    if group is None:
        return group_class()
    check_argument(name, group, isinstance(group, group_class), f"tpudata.{group_class.__name__}(...), or None")
    return group

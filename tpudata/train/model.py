"""Construction of a run's estimator: the dataset's part of the model's params, and its input."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import tpudata
from tpudata.errors import DatasetError, UsageError
from tpudata.format import Dataset, Feature
from tpudata.models import param_defaults
from tpudata.train.options.train_options import TrainOptions

if TYPE_CHECKING:
    from tpudata.estimator import RunConfig, TPUEstimator


def model_params(options: TrainOptions, dataset: Dataset, label: Feature | None) -> dict[str, Any]:
    """Return the `params` of model_fn, without those that the estimator adds.

    Explicit parameters take precedence. The dataset, the seed and the number of steps fill in the others that the model has. A
    user's model gets everything that the dataset knows.

    Args:
        options: of the run.
        dataset: what it reads.
        label: its label, or None.

    Raises:
        DatasetError: a bundled model cannot learn from the dataset.
        UsageError: a bundled model is given fewer classes or tokens than the dataset has.
    """
    defaults = param_defaults(options.model)
    known: dict[str, Any] = {"seed": options.seed}
    if label is not None and label.num_classes is not None:
        known |= _classes(label, options.params, has_offset=defaults is not None and "label_offset" in defaults)
    tokenizer = dataset.manifest.options.get("tokenizer")
    if isinstance(tokenizer, dict) and "vocab_size" in tokenizer:
        known["vocab_size"] = tokenizer["vocab_size"]
    asked = dict(options.params)
    if options.learning_rate is not None:
        asked["learning_rate"] = options.learning_rate
    if defaults is None:
        return {**known, **asked}
    known = {name: value for name, value in known.items() if name in defaults}
    _check_sizes(options, dataset, label, known, asked)
    if "vocab_size" in defaults and not {"vocab_size"} & {*known, *asked}:
        _reject_textless(options, dataset)
    if "decay_steps" in defaults and asked.get("schedule", defaults.get("schedule")) == "cosine":
        # A run that ends within warm-up, such as a trial of a few steps, has the rates of warm-up.
        warmup = asked.get("warmup_steps", defaults.get("warmup_steps"))
        known["decay_steps"] = max(options.train_steps, warmup + 1 if isinstance(warmup, int) else 0)
    return {**known, **asked}


def _classes(label: Feature, asked: Mapping[str, Any], *, has_offset: bool) -> dict[str, int]:
    """Return the parameters for a label: labels are fed as stored, so the model is given the offset, or outputs for all before it.

    Args:
        label: of the dataset.
        asked: parameters that the user gives.
        has_offset: whether the model has the parameter `label_offset`.
    """
    assert label.num_classes is not None
    if not has_offset or not label.label_offset:
        return {"num_classes": label.num_classes + label.label_offset}
    offset = asked.get("label_offset", label.label_offset)
    before = label.label_offset - offset if isinstance(offset, int) and 0 <= offset < label.label_offset else 0
    return {"num_classes": label.num_classes + before, "label_offset": label.label_offset}


def _check_sizes(
    options: TrainOptions, dataset: Dataset, label: Feature | None, known: dict[str, Any], asked: dict[str, Any]
) -> None:
    """Check that the model has an output for each class or token that the dataset has."""
    offset, first = asked.get("label_offset"), 0 if label is None else label.label_offset
    if label is not None and label.num_classes is not None and isinstance(offset, int) and offset > first:
        raise UsageError(
            f"params: label_offset={offset}, and the labels of {dataset.path} begin with {first}: leave label_offset out"
        )
    for name, what in (("num_classes", "labels"), ("vocab_size", "token ids")):
        least, given = known.get(name), asked.get(name)
        if least == 1 and given is None:
            raise DatasetError(
                f"{options.model} tells {what} apart, and {dataset.path} has one alone: convert a folder with several classes"
            )
        if least is not None and isinstance(given, int) and given < least:
            highest = least - 1
            if name == "num_classes" and label is not None and label.num_classes is not None:
                highest = label.label_offset + label.num_classes - 1
            raise UsageError(
                f"params: {name}={given}, and {dataset.path} has {what} up to {highest}: leave {name} out, or give {least}"
            )


def _reject_textless(options: TrainOptions, dataset: Dataset) -> None:
    """Raise the error of a token model whose vocabulary size is unknown."""
    names = [feature.name for feature in dataset.manifest.features]
    if "input_ids" in names:
        raise UsageError(
            f"{options.model}: {dataset.path} does not say how many token ids there are: give --param vocab_size=N"
        )
    raise DatasetError(
        f"{options.model} reads tokens, and {dataset.path} (layout {dataset.manifest.layout}) has {', '.join(names)}: take another "
        "model, or a dataset of `tpudata convert text` with --tokenizer"
    )


def make_estimator(options: TrainOptions, model_fn: Callable[..., Any], params: dict[str, Any]) -> TPUEstimator:
    """Return the estimator of a run.

    Raises:
        ModelFnError: model_fn cannot be used.
        UsageError: what TPUEstimator rejects.
    """
    from tpudata.estimator import RunConfig, TPUConfig, TPUEstimator, cluster_from_slurm

    config = RunConfig(
        tpu_config=TPUConfig(iterations_per_loop=options.iterations_per_loop),
        master=options.master,
        tpu_name=options.tpu_name,
        zone=options.tpu_zone,
        project=options.gcp_project,
        tf_random_seed=options.seed,
        save_checkpoints_steps=options.save_checkpoints_steps,
        profile_steps=options.profile_steps,
        tf_config=None if options.cluster is None else cluster_from_slurm(evaluator=options.cluster != "slurm"),
    )
    _check_task(options, config)
    eval_batch_size = options.eval_batch_size or options.batch_size
    return TPUEstimator(
        model_fn=model_fn,
        model_dir=options.model_dir,
        config=config,
        params=params,
        use_tpu=options.use_tpu,
        rehearse=options.rehearse,
        train_batch_size=options.batch_size,
        eval_batch_size=eval_batch_size,
        predict_batch_size=eval_batch_size,
    )


def _check_task(options: TrainOptions, config: RunConfig) -> None:
    """Check that the mode is one for this process' task of a cluster.

    Raises:
        UsageError: it is not.
    """
    if options.use_tpu or options.rehearse:
        return
    if config.task_type == "evaluator":
        allowed = ["train_and_eval", "eval"]
    elif config.num_worker_replicas > 1:
        allowed = ["train", "train_and_eval"]
    else:
        return
    said = "TF_CONFIG" if options.cluster is None else f"--cluster {options.cluster}"
    where = f"{said}: this process is {config.task_type} {config.task_id} of a cluster"
    if options.mode not in allowed:
        raise UsageError(
            f"{where} (got --mode {options.mode}, expected {' or '.join(allowed)}). Run it in one process, without a cluster."
        )
    if options.early_stop_metric is not None:
        raise UsageError(f"{where}, where --early-stop-metric is not supported. Omit it, or train in one process.")


def training_input_fn(options: TrainOptions, dataset: Dataset) -> Callable[..., Any]:
    """Return the input_fn of training.

    Raises:
        UsageError: an option does not fit what the dataset holds.
        FeatureError: a feature has no static shape.
    """
    from tpudata.input import CutMix, MixUp, RandAugment, TrainCrop, make_input_fn

    mixes: dict[str, MixUp | CutMix] = {"mixup": MixUp(), "cutmix": CutMix()}
    return make_input_fn(
        options.data,
        options.train_split,
        training=True,
        images=tpudata.Images(
            size=options.image_size,
            crop=None if options.crop is None else TrainCrop(options.crop),
            augment=RandAugment() if options.augment else None,
            mix=mixes.get(options.mix or ""),
        ),
        tokens=tpudata.Tokens(
            sequence_length=options.sequence_length, truncate=options.truncate, targets=_targets(dataset)
        ),
        seed=options.seed,
        cache="auto",
    )


def evaluation_input_fn(options: TrainOptions, dataset: Dataset) -> Callable[..., Any]:
    """Return the input_fn of evaluation and prediction; it raises as training_input_fn."""
    from tpudata.input import CentreCrop, make_input_fn

    return make_input_fn(
        options.data,
        options.eval_split,
        training=False,
        images=tpudata.Images(size=options.image_size, crop=None if options.crop is None else CentreCrop(options.crop)),
        tokens=tpudata.Tokens(
            sequence_length=options.sequence_length, truncate=options.truncate, targets=_targets(dataset)
        ),
        cache="auto",
    )


def label_of(options: TrainOptions, dataset: Dataset) -> Feature | None:
    """Return the feature that is the dataset's label, or None; raises as training_input_fn."""
    from tpudata.input.dataset.fields import select_fields

    fields = select_fields(
        dataset.manifest,
        image_size=options.image_size,
        keep_encoded=options.crop is not None,
        sequence_length=options.sequence_length,
        truncate=options.truncate,
    )
    return fields.label.feature if fields.label else None


def _targets(dataset: Dataset) -> bool | None:
    """Return whether labels are the next tokens; also if token records have no label, as there is no other target."""
    names = [feature.name for feature in dataset.manifest.features]
    has_label = bool({"label", "image/class/label"} & {*names})
    return True if dataset.manifest.layout == "tokens" and "input_ids" in names and not has_label else None

"""Construction of a run's estimator: params from the dataset, and the RunConfig."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NoReturn

from tpudata.errors import DatasetError, UsageError
from tpudata.format import Dataset, Feature
from tpudata.models import learns_label_maps, param_defaults
from tpudata.train.label_maps import LabelMap, require_num_classes
from tpudata.train.options.train_options import TrainOptions

if TYPE_CHECKING:
    from tpudata.estimator import RunConfig, TPUEstimator, WarmStartSettings
    from tpudata.estimator.api.user_functions import ModelFunction


def make_model_params(options: TrainOptions, dataset: Dataset, label: Feature | None) -> dict[str, Any]:
    """Return the `params` of model_fn, without those that the estimator adds.

    Explicit parameters take precedence. For other parameters that a bundled model has, values come from the dataset, the seed and
    the number of steps. A user's model gets `seed` and, if the dataset has them, `num_classes` and `vocab_size`.

    Args:
        options: options of the run.
        dataset: the dataset that is read.
        label: feature with the dataset's label, or None.

    Raises:
        DatasetError: a bundled model cannot learn from the dataset.
        UsageError: the parameters of a bundled model do not cover the dataset's labels and tokens, the number of tokens or of a
            label map's classes is unknown, or the label is not one class of each record.
    """
    defaults = param_defaults(options.model)
    derived: dict[str, Any] = {"seed": options.seed}
    if label is not None and label.num_classes is not None:
        derived |= _derive_class_params(
            label, options.params, has_offset=defaults is not None and "label_offset" in defaults
        )
    tokenizer = dataset.manifest.options.get("tokenizer")
    if isinstance(tokenizer, dict) and "vocab_size" in tokenizer:
        derived["vocab_size"] = tokenizer["vocab_size"]
    user_params = dict(options.params)
    if options.learning_rate is not None:
        user_params["learning_rate"] = options.learning_rate
    if defaults is None:
        return {**derived, **user_params}
    label_map = LabelMap.from_dataset(dataset, options.model) if learns_label_maps(options.model) else None
    if label_map is not None:
        derived |= label_map.derive_params(dataset)
        require_num_classes(label_map, dataset, options.model, {**derived, **user_params})
    _check_label(options, dataset, label)
    derived = {name: value for name, value in derived.items() if name in defaults}
    _check_sizes(options, dataset, label, derived, user_params)
    if "vocab_size" in defaults and "vocab_size" not in {**derived, **user_params}:
        _reject_unknown_vocabulary(options, dataset)
    if "decay_steps" in defaults and user_params.get("schedule", defaults.get("schedule")) == "cosine":
        # The model rejects a cosine that ends before warm-up does, so a trial of fewer steps gets a cosine that ends after warm-up.
        warmup = user_params.get("warmup_steps", defaults.get("warmup_steps"))
        # The model rejects a `warmup_steps` of the wrong type later.
        first_step_after_warmup = warmup + 1 if isinstance(warmup, int) else 0
        derived["decay_steps"] = max(options.train_steps, first_step_after_warmup)
    return {**derived, **user_params}


def _derive_class_params(label: Feature, user_params: Mapping[str, object], *, has_offset: bool) -> dict[str, int]:
    """Return `num_classes` for a label, and `label_offset` if it is not 0 and the model has this parameter.

    The caller lets `user_params` override both params.

    Labels are fed as stored, so a model without the parameter `label_offset` also has outputs for the numbers below the offset.

    Args:
        label: feature with the dataset's label.
        user_params: parameters from the user.
        has_offset: whether the model has the parameter `label_offset`.
    """
    assert label.num_classes is not None
    if not has_offset or not label.label_offset:
        return {"num_classes": label.num_classes + label.label_offset}
    offset = user_params.get("label_offset", label.label_offset)
    # With a lower offset from the user, the model also has outputs for the numbers between the two offsets.
    num_extra_classes = (
        label.label_offset - offset if isinstance(offset, int) and 0 <= offset < label.label_offset else 0
    )
    return {"num_classes": label.num_classes + num_extra_classes, "label_offset": label.label_offset}


def _check_label(options: TrainOptions, dataset: Dataset, label: Feature | None) -> None:
    """Raise UsageError if the label is not one integer for each record, its class, which bundled models need."""
    if label is not None and (label.shape != () or "int" not in label.dtype):
        raise UsageError(
            f"{options.model} takes one class of each record as its label (got {label.name!r}, {label.dtype} of shape"
            f" {label.shape}, in {dataset.path}). Pass a model of yours, --model PACKAGE.MODULE:FUNCTION."
        )


def _check_sizes(
    options: TrainOptions,
    dataset: Dataset,
    label: Feature | None,
    derived: dict[str, Any],
    user_params: Mapping[str, object],
) -> None:
    """Raise an error if the model has too few outputs for the dataset, or a `label_offset` above the dataset's first label.

    Args:
        options: options of the run.
        dataset: the dataset that is read.
        label: feature with the dataset's label, or None.
        derived: params of the model that follow from the dataset, by name.
        user_params: parameters from the user, which override `derived`.

    Raises:
        UsageError: the user's `num_classes` or `vocab_size` is too small, or `label_offset` too large.
        DatasetError: the dataset has a single class or token, and the user sets no number.
    """
    offset = user_params.get("label_offset")
    first_label = 0 if label is None else label.label_offset
    if label is not None and label.num_classes is not None and isinstance(offset, int) and offset > first_label:
        raise UsageError(
            f"params: label_offset={offset} is above the first label of {dataset.path} ({first_label}). Omit label_offset."
        )
    for name, value_noun, count_noun, fix in (
        ("num_classes", "labels", "classes", "Convert data with several classes."),
        ("vocab_size", "token ids", "token ids", "Convert the text with another tokenizer."),
    ):
        min_size, user_size = derived.get(name), user_params.get(name)
        if min_size == 1 and user_size is None:
            raise DatasetError(f"{options.model} needs at least 2 {count_noun}; {dataset.path} has 1. {fix}")
        if min_size is not None and isinstance(user_size, int) and user_size < min_size:
            highest = min_size - 1
            # With an offset, the labels do not begin at 0.
            if name == "num_classes" and label is not None and label.num_classes is not None:
                highest = label.label_offset + label.num_classes - 1
            raise UsageError(
                f"params: {name}={user_size} is too few for {dataset.path}, which has {value_noun} up to {highest}. Omit {name}, "
                f"or pass {min_size}."
            )


def _reject_unknown_vocabulary(options: TrainOptions, dataset: Dataset) -> NoReturn:
    """Raise the error for a model that reads tokens, for a dataset that has none or does not state the size of their vocabulary."""
    names = [feature.name for feature in dataset.manifest.features]
    if "input_ids" in names:
        raise UsageError(
            f"{options.model}: the manifest of {dataset.path} has no vocabulary size. Pass --param vocab_size=N."
        )
    raise DatasetError(
        f"{options.model} reads tokens, and {dataset.path} has none (got layout {dataset.manifest.layout} with "
        f"{', '.join(names)}). Use another model, or a dataset of `tpudata convert text` with --tokenizer."
    )


def make_estimator(
    options: TrainOptions, model_fn: ModelFunction, params: Mapping[str, object], warm_start: WarmStartSettings | None
) -> TPUEstimator:
    """Return the estimator of a run.

    Args:
        options: options of the run.
        model_fn: function that builds the model's graph of one mode.
        params: params of model_fn, without those that the estimator adds.
        warm_start: choice of the variables that start from another run's checkpoint; None without a warm start.

    Raises:
        ModelFnError: the estimator cannot use model_fn.
        UsageError: TPUEstimator rejects an option.
    """
    from tpudata.estimator import RunConfig, TPUConfig, TPUEstimator, cluster_from_slurm

    tf_config = None
    if options.cluster is not None:
        tf_config = cluster_from_slurm(evaluator=options.cluster == "slurm-evaluator")
    config = RunConfig(
        tpu_config=TPUConfig(iterations_per_loop=options.iterations_per_loop),
        master=options.master,
        tpu_name=options.tpu_name,
        zone=options.tpu_zone,
        project=options.gcp_project,
        tf_random_seed=options.seed,
        save_checkpoints_steps=options.save_checkpoints_steps,
        profile_steps=options.profile_steps,
        coordinator_address=options.coordinator_address,
        num_processes=options.num_processes,
        process_id=options.process_id,
        tf_config=tf_config,
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
        warm_start_from=warm_start,
    )


def _check_task(options: TrainOptions, config: RunConfig) -> None:
    """Check that the cluster's task of this process supports the mode.

    Raises:
        UsageError: the task does not support the mode, or early stopping.
    """
    # Only a cluster of GPUs and CPUs has these limits, and a rehearsal runs in one process.
    if options.use_tpu or options.rehearse:
        return
    if config.task_type == "evaluator":
        allowed_modes = ["train_and_eval", "eval"]
    elif config.num_worker_replicas > 1:
        allowed_modes = ["train", "train_and_eval"]
    else:
        return
    origin = "TF_CONFIG" if options.cluster is None else f"--cluster {options.cluster}"
    if options.process_id is not None:
        origin = "--process-id"
    task = f"{origin}: this process is {config.task_type} {config.task_id} of a cluster"
    if options.mode not in allowed_modes:
        raise UsageError(
            f"{task} (got --mode {options.mode}, expected {' or '.join(allowed_modes)}). Run it in one process, without a cluster."
        )
    if options.early_stop_metric is not None:
        raise UsageError(f"{task}, which does not support --early-stop-metric. Omit it, or train in one process.")


def find_label(options: TrainOptions, dataset: Dataset) -> Feature | None:
    """Return the feature that is the dataset's label; None if the dataset has no label, or the model learns label maps.

    Raises:
        UsageError: an option does not fit the dataset.
        FeatureError: a feature is missing, has no static shape or cannot be the label.
    """
    from tpudata.input.dataset.select_fields import select_fields
    from tpudata.input.options.columns import FeatureOptions

    fields = select_fields(
        dataset.manifest,
        FeatureOptions(pad=options.pad),
        image_size=options.image_size,
        keep_encoded=options.crop is not None,
        sequence_length=options.sequence_length,
        truncate=options.truncate,
    )
    return fields.label.feature if fields.label and not learns_label_maps(options.model) else None

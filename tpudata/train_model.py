"""From the options of a run to its estimator: what the dataset knows of the model, and what feeds it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tpudata.format import Dataset, Feature
from tpudata.models import param_defaults
from tpudata.train_options import TrainOptions

if TYPE_CHECKING:
    from tpudata.estimator import TPUEstimator


def model_params(options: TrainOptions, dataset: Dataset, label: Feature | None) -> dict[str, Any]:
    """What model_fn gets in `params`, beside what the estimator adds.

    A parameter that is asked for stands; the dataset, the seed and the number of steps fill in what is not, where the model has
    such a parameter. A model of one's own gets all that the dataset knows.

    Args:
        options: of the run.
        dataset: what it reads.
        label: its label, or None.
    """
    defaults = param_defaults(options.model)
    known: dict[str, Any] = {"seed": options.seed}
    if label is not None and label.num_classes is not None:
        # Labels are fed as stored, so with an offset of 1 there is one more than there are classes.
        known["num_classes"] = label.num_classes + label.label_offset
    tokenizer = dataset.manifest.options.get("tokenizer")
    if isinstance(tokenizer, dict) and "vocab_size" in tokenizer:
        known["vocab_size"] = tokenizer["vocab_size"]
    asked = dict(options.params)
    if options.learning_rate is not None:
        asked["learning_rate"] = options.learning_rate
    if defaults is not None:
        known = {name: value for name, value in known.items() if name in defaults}
        if "decay_steps" in defaults and asked.get("schedule", defaults.get("schedule")) == "cosine":
            known["decay_steps"] = options.train_steps
    return {**known, **asked}


def make_estimator(options: TrainOptions, model_fn: Callable[..., Any], params: dict[str, Any]) -> TPUEstimator:
    """The estimator of a run.

    Raises:
        ModelFnError: model_fn cannot be used.
        UsageError: what TPUEstimator refuses.
    """
    from tpudata.estimator import RunConfig, TPUConfig, TPUEstimator

    eval_batch_size = options.eval_batch_size or options.batch_size
    return TPUEstimator(
        model_fn=model_fn,
        model_dir=options.model_dir,
        config=RunConfig(
            tpu_config=TPUConfig(iterations_per_loop=options.iterations_per_loop),
            master=options.master,
            tpu_name=options.tpu_name,
            zone=options.tpu_zone,
            project=options.gcp_project,
            tf_random_seed=options.seed,
            save_checkpoints_steps=options.save_checkpoints_steps,
        ),
        params=params,
        use_tpu=options.use_tpu,
        rehearse=options.rehearse,
        train_batch_size=options.batch_size,
        eval_batch_size=eval_batch_size,
        predict_batch_size=eval_batch_size,
    )


def training_input_fn(options: TrainOptions) -> Callable[..., Any]:
    """What training is fed with."""
    from tpudata.input import make_input_fn

    return make_input_fn(
        options.data, options.train_split, training=True, image_size=options.image_size, seed=options.seed, cache="auto"
    )


def evaluation_input_fn(options: TrainOptions) -> Callable[..., Any]:
    """What evaluation and prediction are fed with."""
    from tpudata.input import make_input_fn

    return make_input_fn(options.data, options.eval_split, training=False, image_size=options.image_size, cache="auto")

"""The modes of `tpudata train`: a function for each, and the rehearsal and the check of a job.

Each function in MODE_FUNCTIONS takes the job and the path of the checkpoint that --checkpoint names (None for the newest), and
returns an Outcome. `rehearse` and `check_model` take only the job.
"""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import tensorflow as tf

from tpudata.devices.tpu_compiler.topologies import find_slice
from tpudata.estimator import ModeKeys, check_tpu_compatibility
from tpudata.estimator.api.user_functions import InputFunction
from tpudata.estimator.export.serving_input import NamedReceiver
from tpudata.estimator.tpu_check.result import raise_if_rejected
from tpudata.storage import storage_for
from tpudata.train.evaluation import Evaluation
from tpudata.train.feeding_rate import read_feeding_rate
from tpudata.train.input import CheckedInput, make_serving_features, remove_weights
from tpudata.train.job import Job, read_global_step
from tpudata.train.outputs.closing_table import Row, make_closing_row
from tpudata.train.outputs.cost_table import make_cost_table
from tpudata.train.outputs.early_stopping import check_metric
from tpudata.train.outputs.predictions import write_predictions
from tpudata.train.outputs.prompt import make_prompt_input_fn, write_continuations

PREDICTIONS_NAME = "predictions.jsonl"
EXPORT_NAME = "export"


@dataclasses.dataclass(frozen=True)
class Outcome:
    """Result of a job.

    Attributes:
        rows: rows of the closing table.
        metrics: metrics of the evaluation with `loss` and `global_step`; empty if nothing was evaluated.
        written: lines that name files written in addition to the model, each after a line break.
    """

    rows: Sequence[Row] = ()
    metrics: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    written: str = ""


def train(job: Job, checkpoint: str | None) -> Outcome:
    """Train up to the last step."""
    del checkpoint  # Training continues from the newest checkpoint.
    return Outcome([_train(job, evaluation=None)])


def train_and_eval(job: Job, checkpoint: str | None) -> Outcome:
    """Train and then evaluate; with early stopping, evaluate each checkpoint until a metric stops improving.

    In a cluster, the evaluator evaluates each checkpoint as it appears; without an evaluator, the chief evaluates.
    """
    evaluation = _make_evaluation(job)
    config = job.estimator.config
    if config.task_type == "evaluator":
        evaluation.run_continuously()
        return Outcome(evaluation.rows, evaluation.metrics)
    # On a TPU, the chief evaluates on its own cores, even if TF_CONFIG has an evaluator.
    has_evaluator = "evaluator" in config.cluster_spec.jobs and not job.options.use_tpu
    # Another process evaluates: the evaluator or, if there is none, the chief.
    if has_evaluator or (config.num_worker_replicas > 1 and not config.is_chief):
        return Outcome([_train(job, evaluation=None)])
    if job.options.early_stop_metric is None:
        row = _train(job, evaluation=None)
        # `checkpoint` is None in this mode, so the newest is evaluated.
        evaluation.run(checkpoint)
    else:
        row = _train(job, evaluation)
    return Outcome([row, *evaluation.rows], evaluation.metrics)


def evaluate(job: Job, checkpoint: str | None) -> Outcome:
    """Evaluate once, or each checkpoint as it appears."""
    evaluation = _make_evaluation(job)
    if job.options.continuous:
        evaluation.run_continuously()
    else:
        evaluation.run(checkpoint)
    return Outcome(evaluation.rows, evaluation.metrics)


def predict(job: Job, checkpoint: str | None) -> Outcome:
    """Write the predictions for a split, or the continuations of a prompt."""
    options = job.options
    path = options.output or storage_for(options.model_dir).join(options.model_dir, PREDICTIONS_NAME)
    # An iterator: the model computes while the predictions are written.
    predictions = job.estimator.predict(_make_inference_input_fn(job), checkpoint_path=checkpoint)
    step = read_global_step(job.estimator, checkpoint)
    written = f"\npredictions: {path}"
    start_time = time.monotonic()
    if options.prompt is not None:
        texts = write_continuations(path, predictions, options)
        seconds = time.monotonic() - start_time
        for text in texts:
            print(f"\n{options.prompt}{text}")
        return Outcome([make_closing_row("predict", "-", len(texts), step, seconds)], written=written)
    num_written, num_correct = write_predictions(
        path, predictions, job.dataset, options.eval_split, job.label, options.num_predictions
    )
    seconds = time.monotonic() - start_time
    accuracy = None if num_correct is None else num_correct / num_written
    return Outcome(
        [make_closing_row("predict", options.eval_split, num_written, step, seconds, accuracy=accuracy)],
        written=written,
    )


def export_model(job: Job, checkpoint: str | None) -> Outcome:
    """Write the SavedModel, with signatures for the features of prediction and for records.

    If the model is fed one image a row and nothing else, there is also a signature for encoded images. Each signature takes any
    number of rows.
    """
    options = job.options
    serving = make_serving_features(options, job.dataset)
    # Filled once the export calls make_receiver.
    signatures: dict[str, dict[str, tf.Tensor]] = {}

    def make_receiver() -> NamedReceiver:
        """Return the inputs of the signatures, built in the graph of the export, and fill `signatures`."""
        tensors = serving.build()
        if tensors.encoded_images is not None:
            signatures["encoded_images"] = {"encoded_images": tensors.encoded_images}
        signatures["examples"] = {"examples": tensors.examples}
        # Callers of the default signature feed the features themselves.
        return NamedReceiver(tensors.features, tensors.features, named_receiver_tensors=signatures)

    inputs = remove_weights(job.evaluation_input.get_element_spec())
    folder = options.output or storage_for(options.model_dir).join(options.model_dir, EXPORT_NAME)
    path = job.estimator.export_saved_model(folder, make_receiver, checkpoint_path=checkpoint).decode()
    shapes = [f"{name} {spec.dtype.name} {[None, *spec.shape[1:]]}" for name, spec in inputs.items()]
    other_signatures = f"other signatures: {', '.join(signatures)}"
    return Outcome(written=f"\nexported: {path}, with inputs {', '.join(shapes)}\n{other_signatures}")


MODE_FUNCTIONS: Mapping[str, Callable[[Job, str | None], Outcome]] = MappingProxyType(
    {"train": train, "eval": evaluate, "train_and_eval": train_and_eval, "predict": predict, "export": export_model}
)


def rehearse(job: Job) -> None:
    """Rehearse the steps of the mode for a TPU, and print their costs.

    Raises:
        RehearsalError: a TPU would reject a step; the message lists the findings.
        UsageError: there is no such TPU, or --feeding is neither a rate nor a report of `tpudata bench`.
        StorageError: the report that --feeding names cannot be read.
    """
    options = job.options
    if options.tpu is not None:
        find_slice(options.tpu, "--tpu")  # Raises the error of an unknown TPU before the model is built.
    feeding = None if options.feeding is None else read_feeding_rate(options.feeding, "--feeding")
    input_fns: dict[str, InputFunction] = {}
    if options.trains:
        input_fns[ModeKeys.TRAIN] = job.training_input
    if options.evaluates:
        input_fns[ModeKeys.EVAL] = job.evaluation_input
    if options.mode == "predict":
        input_fns[ModeKeys.PREDICT] = _make_inference_input_fn(job)
    findings = check_tpu_compatibility(
        job.estimator, input_fns, tpu=options.tpu, tpu_effort=options.tpu_effort or "quick"
    )
    if options.json:
        print(json.dumps(findings.to_json(feeding), indent=1))
    elif findings.costs:
        print(make_cost_table(findings.costs, feeding))
    raise_if_rejected(findings, list(input_fns))


def check_model(job: Job) -> None:
    """Check that the model fits the data and the checkpoint, before anything is recorded; the run reuses what this builds.

    Raises:
        TpudataError: the model does not fit the data or the checkpoint.
    """
    options, estimator = job.options, job.estimator
    if options.trains and estimator.config.task_type != "evaluator":
        estimator.check_model(job.training_input.make_and_keep, ModeKeys.TRAIN)
        if options.early_stop_metric is not None:
            check_metric(options, estimator.check_model(job.evaluation_input.make_and_keep, ModeKeys.EVAL))
    # An export has no batch size, and checks the model itself.
    elif options.mode != "export":
        input_fn = _make_inference_input_fn(job)
        check_input_fn = input_fn.make_and_keep if isinstance(input_fn, CheckedInput) else input_fn
        estimator.check_model(check_input_fn, ModeKeys.EVAL if options.evaluates else ModeKeys.PREDICT)


def _make_evaluation(job: Job) -> Evaluation:
    num_records = job.dataset.kept(job.options.eval_split).records
    return Evaluation(job.estimator, job.options, job.evaluation_input, num_records)


def _make_inference_input_fn(job: Job) -> InputFunction:
    """Return the input_fn of a mode that does not train."""
    prompt = job.options.prompt
    return job.evaluation_input if prompt is None else make_prompt_input_fn(job.options, prompt)


def _train(job: Job, evaluation: Evaluation | None) -> Row:
    """Train up to the last step, and return the training's row of the closing table.

    Args:
        job: the run, which trains.
        evaluation: evaluation of early stopping, which may end the training earlier; None without early stopping.
    """
    options, estimator = job.options, job.estimator
    input_fn, first_step = job.training_input, job.first_step
    if first_step >= options.train_steps:
        print(
            f"nothing to train: {options.model_dir} is at step {first_step}, and --train-steps is {options.train_steps}"
        )
    seconds = 0.0

    def train_to(step: int) -> int:
        """Train up to a step, add the time to `seconds`, and return the step it reached."""
        nonlocal seconds
        start_time = time.monotonic()
        estimator.train(input_fn, max_steps=step)
        seconds += time.monotonic() - start_time
        return read_global_step(estimator) or 0

    # If all steps are done, the estimator returns immediately.
    if evaluation is None:
        train_to(options.train_steps)
    else:
        evaluation.train_with_early_stopping(train_to, first_step)
    last_step = read_global_step(estimator) or 0
    num_records = (last_step - first_step) * options.batch_size
    return make_closing_row("train", options.train_split, num_records, last_step, seconds, loss=estimator.last_loss)

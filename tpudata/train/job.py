"""The training entry point: `python -m tpudata.train`, the same as `tpudata train`.

    dataset -> make_input_fn -> TPUEstimator(model_fn) -> checkpoints, metrics, predictions in the model's folder

In addition to the estimator's files, the model's folder gets evaluation.json (the metrics of the last evaluation),
predictions.jsonl (see tpudata.train.predictions), export/TIME (a SavedModel), early_stopping.json and best/ (see
tpudata.train.evaluation) and a record of the run (see tpudata.train.record).

Training that goes on from a checkpoint is fed the very batch that came next, whatever it is that stopped it: the order of the
records is a function of the seed, the step and the batch size. SIGTERM ends training after the loop that runs, with a checkpoint,
and the evaluations of a training at once, both with the exit code 75; the same command carries on.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tpudata._gcs_blocks import set_block_size
from tpudata._quiet import quiet_loading
from tpudata._tensorflow import require_tensorflow
from tpudata.error_text import reader_error
from tpudata.errors import TpudataError, UsageError
from tpudata.format import Dataset, Feature, open_dataset
from tpudata.models import check_model_name, get_model, make_model_fn
from tpudata.storage import storage_for
from tpudata.train.closing_table import Row, closing_row, closing_table
from tpudata.train.evaluation import Evaluation, check_metric
from tpudata.train.flags import parse_options
from tpudata.train.model import evaluation_input_fn, label_of, make_estimator, model_params, training_input_fn
from tpudata.train.options import TrainOptions
from tpudata.train.places import check_places, check_splits, chosen_checkpoint
from tpudata.train.predictions import write_predictions
from tpudata.train.prompt import prompt_input_fn, write_continuations
from tpudata.train.record import record_run

if TYPE_CHECKING:
    from tpudata.estimator import TPUEstimator

PREDICTIONS_NAME = "predictions.jsonl"
EXPORT_NAME = "export"


def run(argv: Sequence[str], prog: str = "tpudata train") -> int:
    """Runs the command with its flags and returns its exit code.

    Args:
        argv: the flags.
        prog: the command as the person typed it.

    Raises:
        TpudataError: the usage is wrong, or the dataset is not as it should be.
    """
    options = parse_options(argv, prog)
    # A model_fn of one's own is looked for here, too: the `tpudata` script starts without the working directory on the path.
    sys.path.insert(0, str(Path.cwd()))
    try:
        run_options(options)
    except TpudataError:
        raise
    except Exception as error:
        # A damaged record is met by TensorFlow's reader, which wraps what it says in pages of its own.
        known = reader_error(error)
        if known is None:
            raise
        raise known from error
    return 0


def run_options(options: TrainOptions) -> dict[str, Any]:
    """Trains, evaluates, predicts or exports, and prints a closing table.

    Evaluation is exact: every record of the split counts once, and the padding of the last batch weighs nothing.

    Args:
        options: what to do.

    Returns:
        The metrics of the evaluation with `loss` and `global_step`; an empty dict where nothing is evaluated.

    Raises:
        UsageError: a name or value that is not known, or nothing to evaluate or predict with.
        DatasetError: the dataset is incomplete, or lacks a split.
        StorageError: nothing here stores at the data's or the model's path.
        CheckpointError: the model's folder holds the checkpoint of another model.
        ModelFnError: the model is a function that an estimator cannot use.
        TPUConnectionError: no TPU answered, and one is asked for.
        RehearsalError: a TPU would refuse something, and a rehearsal is asked for.
        MissingExtraError: TensorFlow is not installed.
    """
    dataset = open_dataset(options.data)
    check_splits(options, dataset)
    check_places(options)
    check_model_name(options.model)
    _show_progress()
    # TensorFlow takes seconds to load: `--help` and mistakes in the flags do not wait for it.
    set_block_size()
    with quiet_loading():
        require_tensorflow("tpudata train")
    model = get_model(options.model)
    label = label_of(options, dataset)
    params = model_params(options, dataset, label)
    estimator = make_estimator(options, make_model_fn(model, params), params)
    if options.rehearse:
        _rehearse(estimator, options, dataset)
        return {}
    checkpoint = chosen_checkpoint(options)
    if not options.trains and not options.continuous and checkpoint is None and _global_step(estimator) is None:
        raise UsageError(
            f"--mode {options.mode}: {options.model_dir} has no checkpoint. Train first, with --mode train or train_and_eval."
        )
    _check_model(estimator, options, dataset)
    record_run(options, dataset, params)
    rows: list[Row] = []
    written = ""
    evaluation = None
    if options.evaluates:
        records = dataset.kept(options.eval_split).records
        evaluation = Evaluation(estimator, options, evaluation_input_fn(options, dataset), records)
    if options.trains:
        stopping = evaluation if options.early_stop_metric else None
        rows.append(_train(estimator, options, training_input_fn(options, dataset), stopping))
    if evaluation is not None:
        if options.continuous:
            evaluation.run_continuously()
        elif options.early_stop_metric is None:
            evaluation.run(checkpoint)
        rows += evaluation.rows
    if options.mode == "predict":
        written, row = _predict(estimator, options, dataset, label, checkpoint)
        rows.append(row)
    if options.mode == "export":
        written = _export(estimator, options, dataset, checkpoint)
    metrics = evaluation.metrics if evaluation else {}
    print(f"{closing_table(rows, metrics)}\nmodel: {options.model_dir}{written}")
    return metrics


def _show_progress() -> None:
    """Sends the estimator's log to stderr, unless the program that calls has arranged for it."""
    logger = logging.getLogger("tpudata")
    if not logger.hasHandlers():
        logger.addHandler(logging.StreamHandler())
        logger.setLevel(logging.INFO)


def _check_model(estimator: TPUEstimator, options: TrainOptions, dataset: Dataset) -> None:
    """Finds out whether the model and its checkpoint fit before anything is recorded; what it builds is used afterwards."""
    from tpudata.estimator import ModeKeys

    if options.trains:
        estimator.check_model(training_input_fn(options, dataset), ModeKeys.TRAIN)
        if options.early_stop_metric is not None:
            check_metric(options, estimator.check_model(evaluation_input_fn(options, dataset), ModeKeys.EVAL))
    else:
        mode = ModeKeys.EVAL if options.evaluates else ModeKeys.PREDICT
        # An export has no batch size; what does not fit is found as it is made.
        if options.mode != "export":
            estimator.check_model(_unlearned_input_fn(options, dataset), mode)


def _unlearned_input_fn(options: TrainOptions, dataset: Dataset) -> Callable[..., Any]:
    """What a mode that does not train is fed with."""
    return evaluation_input_fn(options, dataset) if options.prompt is None else prompt_input_fn(options)


def _rehearse(estimator: TPUEstimator, options: TrainOptions, dataset: Dataset) -> None:
    """Lists what a TPU would refuse of all that the mode runs; RehearsalError where that is anything."""
    from tpudata.estimator import ModeKeys
    from tpudata.estimator.tpu_check.result import require_none_refused

    modes: dict[str, Callable[..., Any]] = {}
    if options.trains:
        modes[ModeKeys.TRAIN] = training_input_fn(options, dataset)
    if options.evaluates:
        modes[ModeKeys.EVAL] = evaluation_input_fn(options, dataset)
    if options.mode == "predict":
        modes[ModeKeys.PREDICT] = _unlearned_input_fn(options, dataset)
    require_none_refused(estimator.rehearse(modes), list(modes))


def _train(
    estimator: TPUEstimator, options: TrainOptions, input_fn: Callable[..., Any], evaluation: Evaluation | None
) -> Row:
    """Trains up to the last step, or with an evaluation until that gets no better; the row is of the training alone."""
    before = _global_step(estimator) or 0
    if before >= options.train_steps:
        print(f"nothing to train: {options.model_dir} is at step {before}, and --train-steps is {options.train_steps}")
    seconds = 0.0

    def train(step: int) -> int:
        nonlocal seconds
        started = time.monotonic()
        estimator.train(input_fn, max_steps=step)
        seconds += time.monotonic() - started
        return _global_step(estimator) or 0

    if evaluation is None:
        train(options.train_steps)
    else:
        evaluation.train_until_no_better(train, before)
    after = _global_step(estimator) or 0
    records = (after - before) * options.batch_size
    return closing_row("train", options.train_split, records, after, seconds, estimator.last_loss)


def _predict(
    estimator: TPUEstimator, options: TrainOptions, dataset: Dataset, label: Feature | None, checkpoint: str | None
) -> tuple[str, Row]:
    path = options.output or storage_for(options.model_dir).join(options.model_dir, PREDICTIONS_NAME)
    predictions = estimator.predict(_unlearned_input_fn(options, dataset), checkpoint_path=checkpoint)
    step = _global_step(estimator, checkpoint)
    started = time.monotonic()
    if options.prompt is not None:
        texts = write_continuations(path, predictions, options)
        seconds = time.monotonic() - started
        for text in texts:
            print(f"\n{options.prompt}{text}")
        return f"\npredictions: {path}", closing_row("predict", "-", len(texts), step, seconds)
    written, right = write_predictions(path, predictions, dataset, options.eval_split, label, options.num_predictions)
    seconds = time.monotonic() - started
    accuracy = None if right is None else right / written
    row = closing_row("predict", options.eval_split, written, step, seconds, accuracy=accuracy)
    return f"\npredictions: {path}", row


def _export(estimator: TPUEstimator, options: TrainOptions, dataset: Dataset, checkpoint: str | None) -> str:
    """Writes the SavedModel; its inputs are the features that prediction is fed with, any number of rows."""
    from tpudata.estimator import export

    spec = evaluation_input_fn(options, dataset)({"batch_size": 1}).element_spec
    features = spec[0] if isinstance(spec, tuple) else spec
    # What evaluation adds to weigh rows and tokens.
    inputs = {name: tensor for name, tensor in features.items() if name not in ("weights", "token_weights")}
    folder = options.output or storage_for(options.model_dir).join(options.model_dir, EXPORT_NAME)
    receiver = export.build_raw_serving_input_receiver_fn(inputs)
    path = estimator.export_saved_model(folder, receiver, checkpoint_path=checkpoint).decode()
    shapes = [f"{name} {spec.dtype.name} {[None, *spec.shape[1:]]}" for name, spec in inputs.items()]
    return f"\nexported: {path}, of {', '.join(shapes)}"


def _global_step(estimator: TPUEstimator, checkpoint: str | None = None) -> int | None:
    """The step of a checkpoint, by default the latest, or None where there is none."""
    from tpudata.estimator.state.checkpoints import Checkpoint

    path = checkpoint or estimator.latest_checkpoint()
    return None if path is None else Checkpoint.open(path).step()

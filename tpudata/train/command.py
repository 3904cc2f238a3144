"""The training entry point: `python -m tpudata.train`, the same as `tpudata train`.

    dataset -> make_input_fn -> TPUEstimator(model_fn) -> checkpoints, metrics, predictions in the model's folder

In addition to the estimator's files, the model's folder gets evaluation.json (the metrics of the last evaluation),
predictions.jsonl (see tpudata.train.outputs.predictions), export/TIME (a SavedModel), early_stopping.json and best/ (see
tpudata.train.outputs.early_stopping) and a record of the run (see tpudata.train.outputs.record).

Training that continues from a checkpoint gets exactly the next batch, since the order of the records is a function of the seed, the
step and the batch size. SIGTERM ends training with a checkpoint after the current loop, and ends an evaluation during training
immediately, both with exit code 75; the same command continues the training.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tpudata.errors import TpudataError, UsageError
from tpudata.format.read_errors import translate_reader_error
from tpudata.train.job import prepare_job, read_global_step
from tpudata.train.options.flags import parse_options
from tpudata.train.options.train_options import TrainOptions
from tpudata.train.outputs.closing_table import make_closing_table
from tpudata.train.outputs.history import check_same_data, explain_differences
from tpudata.train.outputs.places import find_requested_checkpoint, writes_model_dir
from tpudata.train.outputs.record import record_run
from tpudata.train.range_check import explain_label_error


def run(argv: Sequence[str], prog: str = "tpudata train") -> int:
    """Run the command with its flags, and return the exit code 0.

    Args:
        argv: the flags, without the name of the command.
        prog: the command as the user typed it, for messages.

    Raises:
        TpudataError: the usage is wrong, or the run failed.
    """
    options = parse_options(argv, prog)
    if options.tpu is not None:
        # A rehearsal uses no chip; without this, jax would start the chips of this machine.
        os.environ.setdefault("JAX_PLATFORMS", "cpu")
    # For the user's model_fn, since the `tpudata` script starts without the working directory on the path.
    sys.path.insert(0, str(Path.cwd()))
    try:
        run_options(options)
    except TpudataError:
        raise
    except Exception as error:
        # TensorFlow wraps the message of a damaged record, or of a label without an output, in pages of text.
        explained_error = translate_reader_error(error) or explain_label_error(options, error)
        if explained_error is None:
            raise
        raise explained_error from error
    return 0


def run_options(options: TrainOptions) -> dict[str, Any]:
    """Train, evaluate, predict or export, and print a closing table.

    Evaluation is exact: every record of the split counts once, and the padding of the last batch has the weight 0.

    Args:
        options: options of the run.

    Returns:
        The metrics of the evaluation with `loss` and `global_step`; an empty dict if nothing is evaluated.

    Raises:
        UsageError: a name or value is not allowed, there is no checkpoint to evaluate, predict with or export, or the training in
            the model's folder was on different records.
        DatasetError: the dataset is incomplete, or lacks a split.
        StorageError: the path of the data or the model cannot be read or written.
        CheckpointError: the model's folder has the checkpoint of another model.
        ModelFnError: the estimator cannot use the model function.
        ClusterError: another process of the cluster ended, or cannot be reached.
        OutputError: another training is running in the model's folder.
        TPUConnectionError: no TPU answered.
        RehearsalError: the rehearsal found something that a TPU would reject.
        MissingExtraError: TensorFlow is not installed.
        TpudataError: a file that records earlier runs is damaged, or --continuous found no checkpoint in time.
    """
    job = prepare_job(options)
    # Imported late, since it loads TensorFlow.
    from tpudata.estimator.state.claim import claim_model_dir
    from tpudata.train.modes import MODE_FUNCTIONS, check_model, rehearse

    if options.rehearse:
        rehearse(job)
        return {}
    checkpoint = find_requested_checkpoint(options)
    # A continuous evaluation waits for the first checkpoint.
    needs_checkpoint = not options.trains and not options.continuous
    if needs_checkpoint and checkpoint is None and read_global_step(job.estimator) is None:
        raise UsageError(
            f"--mode {options.mode}: {options.model_dir} has no checkpoint. Train first, with --mode train or train_and_eval."
        )
    with contextlib.ExitStack() as stack:
        if options.trains and job.estimator.config.is_chief:
            # Before anything is compared or recorded, so that a second run changes nothing in the folder of the first.
            stack.enter_context(claim_model_dir(options.model_dir, shares_with_trainings=True))
        previous = job.history.find_previous_section(job.first_step) if options.trains else None
        will_train = options.trains and job.first_step < options.train_steps
        if previous is not None and will_train:
            check_same_data(options, previous.configuration, job.configuration, job.first_step)
        check_model(job)
        if job.estimator.config.is_chief:
            # A run without steps to train must not replace the record of the run that trained.
            saves_file = will_train if options.trains else writes_model_dir(options)
            record_run(options, job.configuration, saves_file=saves_file)
            if will_train:
                changes = "" if previous is None else explain_differences(previous, job.section)
                if changes:
                    print(f"{changes}\n", flush=True)
                job.history.write(options.model_dir, job.section)
        outcome = MODE_FUNCTIONS[options.mode](job, checkpoint)
    print(f"{make_closing_table(outcome.rows, outcome.metrics)}\nmodel: {options.model_dir}{outcome.written}")
    return dict(outcome.metrics)

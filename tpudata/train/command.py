"""The training entry point: `python -m tpudata.train`, the same as `tpudata train`.

    dataset -> make_input_fn -> TPUEstimator(model_fn) -> checkpoints, metrics, predictions in the model's folder

In addition to the estimator's files, the model's folder gets evaluation.json (the metrics of the last evaluation),
predictions.jsonl (see tpudata.train.outputs.predictions), export/TIME (a SavedModel), early_stopping.json and best/ (see
tpudata.train.evaluation) and a record of the run (see tpudata.train.outputs.record).

Training that goes on from a checkpoint is fed the very batch that came next, whatever it is that stopped it: the order of the
records is a function of the seed, the step and the batch size. SIGTERM ends training after the loop that runs, with a checkpoint,
and the evaluations of a training at once, both with the exit code 75; the same command carries on.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tpudata.error_text import reader_error
from tpudata.errors import TpudataError, UsageError
from tpudata.train.job import prepare
from tpudata.train.options.flags import parse_options
from tpudata.train.options.train_options import TrainOptions
from tpudata.train.outputs.closing_table import closing_table
from tpudata.train.outputs.places import chosen_checkpoint
from tpudata.train.outputs.record import record_run


def run(argv: Sequence[str], prog: str = "tpudata train") -> int:
    """Run the command with its flags and return its exit code.

    Args:
        argv: the flags.
        prog: the command as the person typed it.

    Raises:
        TpudataError: the usage is wrong, or the dataset is not as it should be.
    """
    options = parse_options(argv, prog)
    # The user's model_fn may be here: the `tpudata` script starts without the working directory on the path.
    sys.path.insert(0, str(Path.cwd()))
    try:
        run_options(options)
    except TpudataError:
        raise
    except Exception as error:
        # A damaged record is met by TensorFlow's reader, which wraps the message in pages of text.
        known = reader_error(error)
        if known is None:
            raise
        raise known from error
    return 0


def run_options(options: TrainOptions) -> dict[str, Any]:
    """Train, evaluate, predict or export, and print a closing table.

    Evaluation is exact: every record of the split counts once, and the padding of the last batch weighs nothing.

    Args:
        options: what to do.

    Returns:
        The metrics of the evaluation with `loss` and `global_step`; an empty dict if nothing is evaluated.

    Raises:
        UsageError: a name or value that is not known, or nothing to evaluate or predict with.
        DatasetError: the dataset is incomplete, or lacks a split.
        StorageError: nothing here stores at the data's or the model's path.
        CheckpointError: the model's folder holds the checkpoint of another model.
        ModelFnError: the model is a function that an estimator cannot use.
        ClusterError: another process of the cluster ended, or cannot be reached.
        OutputError: another training is at work in the model's folder.
        TPUConnectionError: no TPU answered, and one is asked for.
        RehearsalError: a TPU would reject something, and a rehearsal is asked for.
        MissingExtraError: TensorFlow is not installed.
    """
    job = prepare(options)
    # It loads TensorFlow.
    from tpudata.train.modes import MODE_FUNCTIONS, check_model, global_step, rehearse

    if options.rehearse:
        rehearse(job)
        return {}
    checkpoint = chosen_checkpoint(options)
    if not options.trains and not options.continuous and checkpoint is None and global_step(job.estimator) is None:
        raise UsageError(
            f"--mode {options.mode}: {options.model_dir} has no checkpoint. Train first, with --mode train or train_and_eval."
        )
    check_model(job)
    if job.estimator.config.is_chief:
        record_run(options, job.dataset, job.params)
    outcome = MODE_FUNCTIONS[options.mode](job, checkpoint)
    print(f"{closing_table(outcome.rows, outcome.metrics)}\nmodel: {options.model_dir}{outcome.written}")
    return dict(outcome.metrics)

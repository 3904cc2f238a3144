"""Splits, folders and the checkpoint of a run, checked before it starts."""

from __future__ import annotations

from pathlib import Path

from tpudata.error_text.libraries import find_reason
from tpudata.errors import DatasetError, StorageError, UsageError
from tpudata.format import Dataset
from tpudata.storage import storage_for
from tpudata.train.options.train_options import BEST, TrainOptions
from tpudata.train.outputs.early_stopping import get_best_folder

# Schemes that TensorFlow reads and writes without another package.
_SCHEMES = ("file", "gs")


def check_splits(options: TrainOptions, dataset: Dataset) -> None:
    """Check that the dataset has the splits that the mode reads.

    Raises:
        DatasetError: the dataset lacks a split, or a split has no records.
    """
    splits = dataset.manifest.splits
    split_by_flag = {"--train-split": options.train_split} if options.trains else {}
    # A prompt takes the place of a split's records.
    if options.mode != "train" and options.prompt is None:
        split_by_flag["--eval-split"] = options.eval_split
    for flag, name in split_by_flag.items():
        if name in splits:
            dataset.kept(name)  # Raises the error of a split without records.
            continue
        fixes = [f"Pass {flag} {' or '.join(splits)}", "convert again with --split train=0.9,validation=0.1"]
        if flag == "--eval-split" and options.mode == "train_and_eval":
            fixes.insert(1, "train without evaluation (--mode train)")
        raise DatasetError(
            f"{dataset.path}: no split {name!r} (it has {', '.join(splits)}). {', '.join(fixes[:-1])}, or {fixes[-1]}."
        )


def check_places(options: TrainOptions) -> None:
    """Check that a run can write its files, and writes no file into the dataset's folder.

    A model_dir may still be a folder in the dataset's folder, and the output may be in that model_dir.

    Raises:
        UsageError: TensorFlow has no file system for a path; the model's folder is a file or the dataset's folder; or the output is
            in the dataset's folder, or is a folder instead of a file or a file instead of a folder.
        StorageError: the model's path or the output cannot be written, or has an unknown scheme.
    """
    for flag, path in (("--model-dir", options.model_dir), ("--data", options.data)):
        _check_scheme(flag, path)
    model_dir_entry = storage_for(options.model_dir).stat(options.model_dir)
    if model_dir_entry is not None and not model_dir_entry.is_folder:
        raise UsageError(f"--model-dir {options.model_dir} is a file. Pass a folder; it is created if needed.")
    if _resolve(options.model_dir) == _resolve(options.data):
        raise UsageError(f"--model-dir {options.model_dir} is the dataset's folder. Pass another one.")
    output = options.output
    if output is not None and _is_in(output, options.data) and not _is_in(output, options.model_dir):
        raise UsageError(f"--output {output} is in the dataset's folder, {options.data}. Pass another place.")
    if options.rehearse:
        return  # Writes nothing.
    if writes_model_dir(options):
        storage_for(options.model_dir).check_writable(options.model_dir)
    if output is not None:
        storage = storage_for(output)
        output_entry = storage.stat(output)
        if options.mode == "predict" and output_entry is not None and output_entry.is_folder:
            raise UsageError(
                f"--output {output} is a folder. Pass a file in it, such as {storage.join(output, 'predictions.jsonl')}."
            )
        if options.mode == "export" and output_entry is not None and not output_entry.is_folder:
            raise UsageError(f"--output {output} is a file. Pass a folder.")
        storage.check_writable(output)


def writes_model_dir(options: TrainOptions) -> bool:
    """Return whether the run writes to the model's folder; rehearsals do not, nor do predict and export with --output elsewhere."""
    if options.rehearse:
        return False
    is_elsewhere = options.output is not None and not _is_in(options.output, options.model_dir)
    return not (options.mode in ("predict", "export") and is_elsewhere)


def find_requested_checkpoint(options: TrainOptions) -> str | None:
    """Return the path of the checkpoint that --checkpoint names, without .index; None without the flag.

    Raises:
        UsageError: there is no such checkpoint.
        CheckpointError: the checkpoint cannot be read.
        StorageError: the path cannot be read.
    """
    if options.checkpoint is None:
        return None
    if options.checkpoint == BEST:
        folder = get_best_folder(options.model_dir)
        path = find_checkpoint("--checkpoint", folder)
        if path is None:
            raise UsageError(
                f"--checkpoint {BEST}: {folder} has no checkpoint. Train with --early-stop-metric, which keeps the best one there."
            )
        return path
    path = find_checkpoint("--checkpoint", options.checkpoint)
    if path is None:
        import tensorflow as tf

        state = tf.train.get_checkpoint_state(options.model_dir)
        paths = [] if state is None else list(state.all_model_checkpoint_paths)
        raise UsageError(
            f"--checkpoint {options.checkpoint}: there is no {options.checkpoint.removesuffix('.index')}.index. Pass a checkpoint "
            f"of {options.model_dir} (it has {', '.join(paths) or 'none'})."
        )
    return path


def find_checkpoint(flag: str, path: str) -> str | None:
    """Return the path, without .index, of a checkpoint or of the newest checkpoint in a folder; None if no such checkpoint exists.

    Args:
        flag: flag with the path, for errors.
        path: path of the checkpoint, with or without .index, or a folder of checkpoints or of a SavedModel.

    Raises:
        UsageError: TensorFlow has no file system for the path, or the path cannot be the name of a file.
        CheckpointError: the checkpoint, or the folder's list of checkpoints, cannot be read.
        StorageError: the path cannot be read.
    """
    import tensorflow as tf

    from tpudata.estimator.state.checkpoint import Checkpoint
    from tpudata.estimator.state.checkpoints import find_latest

    _check_scheme(flag, path)
    # TensorFlow takes neither a null character nor a lone surrogate, which UTF-8 cannot encode, in a path.
    if "\0" in path or path != path.encode(errors="replace").decode():
        raise UsageError(f"{flag} {path!r} cannot be the name of a file. Pass the path of a checkpoint.")
    try:
        if tf.io.gfile.isdir(path):
            newest = find_latest(path)
            saved_model_prefix = tf.io.gfile.join(path, "variables", "variables")
            prefix = saved_model_prefix if newest is None else newest.prefix
        else:
            prefix = path.removesuffix(".index")
        if not tf.io.gfile.exists(f"{prefix}.index"):
            return None
    except tf.errors.OpError as error:
        raise StorageError(f"{flag} {path} could not be read: {find_reason(error)}. Check the path.") from error
    Checkpoint.open(prefix).read_step()  # Raises the error of a damaged checkpoint.
    return str(prefix)


def _check_scheme(flag: str, path: str) -> None:
    """Raise UsageError if a path has a scheme, such as s3://, for which TensorFlow has no file system."""
    scheme, separator, _ = path.partition("://")
    if separator and scheme not in _SCHEMES:
        raise UsageError(
            f"{flag} {path}: TensorFlow has no file system for {scheme}:// (expected a local path or gs://). Pass another path."
        )


def _resolve(path: str) -> str:
    return path.rstrip("/") if "://" in path else str(Path(path).resolve())


def _is_in(path: str, folder: str) -> bool:
    return f"{_resolve(path)}/".startswith(f"{_resolve(folder)}/")

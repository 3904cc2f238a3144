"""Splits, folders and the checkpoint of a run, checked before it starts."""

from __future__ import annotations

from pathlib import Path

from tpudata.errors import DatasetError, StorageError, UsageError
from tpudata.format import Dataset
from tpudata.storage import storage_for
from tpudata.train.options.train_options import BEST, TrainOptions

# Schemes that TensorFlow reads and writes without another package.
_SCHEMES = ("file", "gs")


def check_splits(options: TrainOptions, dataset: Dataset) -> None:
    """Check that the dataset has the splits that the mode reads.

    Raises:
        DatasetError: the dataset lacks a split.
    """
    splits = dataset.manifest.splits
    wanted = {"--train-split": options.train_split} if options.trains else {}
    if options.mode != "train" and options.prompt is None:
        wanted["--eval-split"] = options.eval_split
    for flag, name in wanted.items():
        if name in splits:
            continue
        fixes = [f"Pass {flag} {' or '.join(splits)}", "convert again with --split train=0.9,validation=0.1"]
        if flag == "--eval-split" and options.mode == "train_and_eval":
            fixes.insert(1, "train without evaluation (--mode train)")
        raise DatasetError(
            f"{dataset.path}: no split {name!r} (it has {', '.join(splits)}). {', '.join(fixes[:-1])}, or {fixes[-1]}."
        )


def check_places(options: TrainOptions) -> None:
    """Check that a run can write its files, without overwriting the dataset or anything of another kind.

    Raises:
        UsageError: TensorFlow has no file system for a path; the model's folder is a file or the dataset's folder; or the output is
            in the dataset's folder, or is a folder instead of a file or a file instead of a folder.
        StorageError: the model's path or the output cannot be written, or has an unknown scheme.
    """
    for flag, path in (("--model-dir", options.model_dir), ("--data", options.data)):
        scheme, found_scheme, _ = path.partition("://")
        if found_scheme and scheme not in _SCHEMES:
            raise UsageError(
                f"{flag} {path}: TensorFlow has no file system for {scheme}:// (expected a local path or gs://). Copy it."
            )
    found = storage_for(options.model_dir).stat(options.model_dir)
    if found is not None and not found.is_folder:
        raise UsageError(f"--model-dir {options.model_dir} is a file. Pass a folder; it is created if needed.")
    if _resolved(options.model_dir) == _resolved(options.data):
        raise UsageError(f"--model-dir {options.model_dir} is the dataset's folder. Pass another one.")
    output = options.output
    if output is not None and _is_in(output, options.data) and not _is_in(output, options.model_dir):
        raise UsageError(f"--output {output} is in the dataset's folder, {options.data}. Pass another place.")
    if options.rehearse:
        return  # Writes nothing.
    storage_for(options.model_dir).check_writable(options.model_dir)
    if output is not None:
        storage = storage_for(output)
        found = storage.stat(output)
        if options.mode == "predict" and found is not None and found.is_folder:
            raise UsageError(
                f"--output {output} is a folder. Pass a file in it, such as {storage.join(output, 'predictions.jsonl')}."
            )
        if options.mode == "export" and found is not None and not found.is_folder:
            raise UsageError(f"--output {output} is a file. Pass a folder.")
        storage.check_writable(output)


def chosen_checkpoint(options: TrainOptions) -> str | None:
    """Return the path of the requested checkpoint, without its ending, or None for the newest.

    Raises:
        UsageError: there is no such checkpoint.
    """
    if options.checkpoint is None:
        return None
    import tensorflow as tf

    if options.checkpoint == BEST:
        folder = best_folder(options)
        path = tf.train.latest_checkpoint(folder)
        if path is None:
            raise UsageError(
                f"--checkpoint {BEST}: {folder} has no checkpoint. Train with --early-stop-metric, which keeps the best one there."
            )
        return str(path)
    # A folder stands for its newest checkpoint.
    path = tf.train.latest_checkpoint(options.checkpoint) or options.checkpoint.removesuffix(".index")
    if not tf.io.gfile.exists(f"{path}.index"):
        known = tf.train.get_checkpoint_state(options.model_dir)
        paths = [] if known is None else list(known.all_model_checkpoint_paths)
        raise UsageError(
            f"--checkpoint {options.checkpoint}: there is no {path}.index. Pass a checkpoint of {options.model_dir} (it has "
            f"{', '.join(paths) or 'none'})."
        )
    return str(path)


def best_folder(options: TrainOptions) -> str:
    """Return the folder in which early stopping keeps the best checkpoint."""
    return storage_for(options.model_dir).join(options.model_dir, BEST)


def keep_best(options: TrainOptions, checkpoint: str) -> None:
    """Copy a checkpoint to `best_folder`, in place of the previous one.

    Raises:
        StorageError: the checkpoint could not be written.
    """
    import tensorflow as tf

    from tpudata.estimator.api.errors import reason

    folder, name = best_folder(options), Path(checkpoint).name
    before = tf.train.latest_checkpoint(folder)
    try:
        tf.io.gfile.makedirs(folder)
        for path in tf.io.gfile.glob(f"{checkpoint}.*"):
            tf.io.gfile.copy(path, tf.io.gfile.join(folder, Path(path).name), overwrite=True)
    except tf.errors.OpError as error:
        raise StorageError(
            f"{checkpoint}, the best so far, could not be copied to {folder}: {reason(error)}. Provide space and permission, and "
            "run again; training continues."
        ) from error
    # The state file, replaced in one piece, names the best checkpoint: until then the previous one is valid.
    storage = storage_for(folder)
    with storage.create(storage.join(folder, "checkpoint")) as file:
        file.write(f'model_checkpoint_path: "{name}"\nall_model_checkpoint_paths: "{name}"\n'.encode())
    if before is not None and Path(before).name != name:
        for path in tf.io.gfile.glob(f"{before}.*"):
            tf.io.gfile.remove(path)


def _resolved(path: str) -> str:
    return path.rstrip("/") if "://" in path else str(Path(path).resolve())


def _is_in(path: str, folder: str) -> bool:
    return f"{_resolved(path)}/".startswith(f"{_resolved(folder)}/")

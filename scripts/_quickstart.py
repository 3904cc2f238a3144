"""The program of scripts/quickstart: digits to PNG files, TFRecord shards, a trained model, and predictions.

All results are below one folder. In a second run, each step keeps complete results and makes missing ones; nothing is deleted, and
only pictures with different content are written again.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import io
import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from tpudata.console.tables import bytes_text, count_text, table
from tpudata.format import open_dataset
from tpudata.storage import storage_for

ROOT = Path(__file__).resolve().parent.parent
MIN_ACCURACY = 0.97
TRAIN_STEPS = 600
PREDICTION_COUNT = 8
# Seconds that a command may take to end after Ctrl-C before it is killed.
GRACE_SECONDS = 10
INTERRUPTED = 130


def main() -> int:
    """Read the arguments and run the steps; return the exit code."""
    parser = argparse.ArgumentParser(prog="scripts/quickstart", description=__doc__)
    parser.add_argument("folder", nargs="?", default="quickstart", help="folder of all results (default: %(default)s)")
    parser.add_argument(
        "--gcs",
        action="store_true",
        help="convert from gs:// to gs:// and train there: on a small store of this machine, whose objects end with it",
    )
    flags = parser.parse_args()
    folder = Path(flags.folder)
    try:
        with lock_folder(folder) as lock:
            if lock is None:
                print(f"quickstart: another quickstart is running in {folder}", file=sys.stderr)
                return 1
            return run_on_gcs(folder, lock) if flags.gcs else run_steps(folder, lock)
    except KeyboardInterrupt:
        print("\nquickstart: interrupted; run again to continue", file=sys.stderr)
        return INTERRUPTED


@contextlib.contextmanager
def lock_folder(folder: Path) -> Iterator[int | None]:
    """Make the folder and lock it: yield the lock's file descriptor, or None if another process holds the lock."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield None
        else:
            yield file.fileno()


def run_on_gcs(folder: Path, lock: int) -> int:
    """Run the steps on gs://, as served by scripts/gcs_emulator; return 0 if the model is as accurate as expected.

    Args:
        folder: folder of all results.
        lock: file descriptor of the folder's lock.
    """
    write_pictures(folder / "digits")
    variables_file = folder / ".gcs"
    variables_file.unlink(missing_ok=True)
    command = [sys.executable, "-m", "scripts.fake_gcs", f"--environment={variables_file.absolute()}"]
    command += [f"--bucket=digits={folder.absolute() / 'digits'}", "--bucket=trial"]
    print("\n== A store on this machine: gs://digits holds the pictures; scripts/gcs_emulator starts one for you")
    # The store inherits the lock, as the commands do, see `run`.
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, pass_fds=[lock]) as process:
        try:
            while not variables_file.exists():
                if process.poll() is not None:
                    return process.returncode
                time.sleep(0.05)
            # Lines such as `export NAME=VALUE`.
            for line in variables_file.read_text().splitlines():
                name, value = shlex.split(line)[1].split("=", 1)
                os.environ[name] = value
            return run_steps_at("gs://digits", "gs://trial/dataset", "gs://trial/model", lock)
        finally:
            process.terminate()
            variables_file.unlink(missing_ok=True)


def run_steps(folder: Path, lock: int) -> int:
    """Run the steps and print the results; return 0 if the model is as accurate as expected.

    Args:
        folder: folder of all results.
        lock: file descriptor of the folder's lock.
    """
    write_pictures(folder / "digits")
    return run_steps_at(str(folder / "digits"), str(folder / "dataset"), str(folder / "model"), lock)


def write_pictures(folder: Path) -> None:
    """Write the digits, and print how many were written."""
    print(f"== Pictures: {folder}")
    print(f"{write_digits(folder)} PNG files written")


def run_steps_at(digits: str, dataset: str, model: str, lock: int) -> int:
    """Convert the pictures to the dataset, train the model and predict, in local folders or on gs://.

    Args:
        digits: folder of the pictures.
        dataset: folder of the dataset.
        model: folder of the model.
        lock: file descriptor of the lock, which the commands inherit.

    Returns:
        The exit code of the first command that fails; 1 if the model is less accurate than expected; otherwise 0.
    """
    tpudata = os.path.relpath(Path(sys.executable).with_name("tpudata"))
    train = [tpudata, "train", "--model", "mnist_cnn", "--data", dataset, "--model-dir", model]
    convert = [tpudata, "convert", "images", "--input", digits, "--output", dataset]
    # --resume continues an interrupted conversion, and does not change a complete one.
    convert += ["--split", "train=0.8,validation=0.2", "--resume"]
    commands = {
        "Convert": convert,
        "Train and evaluate": [*train, "--train-steps", str(TRAIN_STEPS)],
        "Predict": [*train, "--mode", "predict", "--num-predictions", str(PREDICTION_COUNT)],
    }
    for title, command in commands.items():
        print(f"\n== {title}: {shlex.join(command)}", flush=True)
        code = run(command, lock)
        if code:
            print(f"quickstart: the command above failed with exit code {code}.", file=sys.stderr)
            return code
    accuracy = print_results(digits, dataset, model)
    print("\nThe three commands that did the work; for your own pictures, change --input and the folders:\n")
    for command in commands.values():
        print(f"  {shlex.join(command)}")
    if accuracy < MIN_ACCURACY:
        print(f"\nquickstart: held-out accuracy {accuracy:.2%} is below {MIN_ACCURACY:.0%}.", file=sys.stderr)
        return 1
    return 0


def run(command: Sequence[str], lock: int) -> int:
    """Run a command and return its exit code; Ctrl-C ends it and is raised once it has ended."""
    # The command inherits the lock: if this process is killed, the folder stays locked until the command has ended.
    with subprocess.Popen(command, pass_fds=[lock]) as process:
        try:
            return process.wait()
        except KeyboardInterrupt:
            # The terminal also sends Ctrl-C to the command, which cleans up.
            try:
                process.wait(GRACE_SECONDS)
            except (subprocess.TimeoutExpired, KeyboardInterrupt):
                process.kill()
            raise


def write_digits(folder: Path) -> int:
    """Write scikit-learn's digits as 8x8 grey PNG files, `<class>/<number>.png`, unless they exist with the same content.

    Returns:
        The number of files that were written.
    """
    # Imported here, since it takes a second, in which `main` handles Ctrl-C.
    from sklearn.datasets import load_digits

    data = load_digits()
    pixels = (data.images * (255 / 16)).round().astype(np.uint8)
    written_count = 0
    for number, (image, label) in enumerate(zip(pixels, data.target, strict=True)):
        path = folder / str(label) / f"{number:04d}.png"
        encoded = io.BytesIO()
        Image.fromarray(image).save(encoded, "PNG")
        if path.is_file() and path.read_bytes() == encoded.getvalue():
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        # Under a hidden name until it is complete, so that an interrupted run leaves no damaged picture.
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            temporary.write_bytes(encoded.getvalue())
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        written_count += 1
    return written_count


def print_results(digits: str, dataset: str, model: str) -> float:
    """Print the results, and return the accuracy on the held-out split; the arguments are the folders."""
    manifest = open_dataset(dataset).manifest
    storage = storage_for(model)
    metrics = json.loads(storage.read(storage.join(model, "evaluation.json")))
    accuracy = float(metrics["accuracy"])
    shards = [shard for split in manifest.splits.values() for shard in split.shards]
    splits_text = ", ".join(f"{name} {count_text(split.records)}" for name, split in manifest.splits.items())
    print("\n== What was made")
    rows = [
        (
            "pictures",
            digits,
            f"{count_text(manifest.source.files)} PNG files, {bytes_text(manifest.source.bytes)}",
        ),
        ("records", dataset, f"{count_text(manifest.records)} ({splits_text})"),
        ("shards", "", f"{len(shards)} TFRecord files, {bytes_text(sum(shard.bytes for shard in shards))}"),
        ("model", model, f"mnist_cnn after {count_text(metrics['global_step'])} steps of training"),
        (
            "held out",
            "",
            f"accuracy {accuracy:.2%} on {count_text(metrics['records'])} records, cross-entropy {metrics['cross_entropy']:.4f}",
        ),
    ]
    print(table(rows))
    lines = [json.loads(line) for line in storage.read(storage.join(model, "predictions.jsonl")).splitlines()]
    predictions = [("picture", "is a", "predicted", "probability")]
    for line in lines:
        best = max(line["predictions"]["probabilities"])
        predictions.append((line["filename"], line["label_name"], line["class_name"], f"{best:.1%}"))
    print(f"\n{table(predictions, right=[3])}")
    return accuracy


if __name__ == "__main__":
    sys.exit(main())

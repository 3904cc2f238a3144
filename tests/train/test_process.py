"""`python -m tpudata.train` as a separate process: what it prints, and how SIGTERM ends it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import tensorflow as tf

from tests.helpers.forked import Forked
from tpudata.cli import main


def test_names_the_extra_without_tensorflow(digits_dataset: Path, tmp_path: Path) -> None:
    program = "import sys; sys.modules['tensorflow'] = None; from tpudata.cli import main; sys.exit(main(sys.argv[1:]))"
    words = ["train", "--model=mnist_cnn", f"--data={digits_dataset}", f"--model-dir={tmp_path / 'm'}"]
    done = subprocess.run([sys.executable, "-c", program, *words], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith("tpudata: error: tpudata train needs the [tensorflow] extra")
    assert not (tmp_path / "m").exists()


def test_sigterm_saves_and_the_same_command_resumes(digits_dataset: Path, tmp_path: Path) -> None:
    common = [
        f"--data={digits_dataset}",
        "--model=mnist_cnn",
        "--batch-size=32",
        "--iterations=10",
        "--use_tpu=false",
        "--master=",
    ]
    command = ["-m", "tpudata.train", *common, f"--model-dir={tmp_path / 'm'}"]
    with Forked(*command, "--train-steps=3000") as process:
        process.wait_for("step ")
        process.send_signal(signal.SIGTERM)
        assert process.wait() == 75
        out, err = process.stdout, process.stderr
    found = re.search(
        r"^SIGTERM: training stopped at step (\d+), which is saved. Run again to continue.$", err, re.MULTILINE
    )
    assert found is not None, err
    step = int(found[1])
    assert step % 10 == 1  # the loop that ran: the first ends at the first step, for the log
    assert "Traceback" not in err
    assert out.startswith("configuration, saved in train_config.json:\n")
    # An existing log level is kept, and the tests above have set one.
    environment = {name: value for name, value in os.environ.items() if name != "TF_CPP_MIN_LOG_LEVEL"}
    command = [sys.executable, *command, f"--train-steps={step + 20}"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    # stderr has only progress.
    assert [line.split()[0] for line in done.stderr.splitlines()] == ["step", "step", "Saved", "Evaluated"]
    through = [*common, "--mode=train", f"--model-dir={tmp_path / 'through'}", f"--train-steps={step + 20}"]
    assert main(["train", *through]) == 0
    paths = [tf.train.latest_checkpoint(str(tmp_path / folder)) for folder in ("m", "through")]
    assert int(tf.train.load_variable(paths[0], "global_step")) == step + 20
    for name, _ in tf.train.list_variables(paths[0]):
        assert (tf.train.load_variable(paths[0], name) == tf.train.load_variable(paths[1], name)).all(), name


def test_the_module_names_itself_when_it_rejects_a_flag() -> None:
    command = [sys.executable, "-m", "tpudata.train", "--stepz"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("tpudata: error: python -m tpudata.train: unknown flag --stepz")


# Each batch of its evaluation prints a line when it begins, and is slow.
SLOW_EVALUATION = """
import time
import tensorflow as tf
from tpudata.estimator import TPUEstimatorSpec

def slow(x):
    print("evaluating", flush=True)
    time.sleep(0.3)
    return x

def model_fn(features, labels, mode):
    loss = 0 * tf.compat.v1.get_variable("kernel", [])
    if mode == "eval":
        loss = tf.ensure_shape(tf.numpy_function(slow, [loss], tf.float32), [])
    return TPUEstimatorSpec(mode, loss=loss, train_op=tf.compat.v1.train.get_global_step().assign_add(1))
"""


def test_sigterm_ends_an_evaluation_during_training(tmp_path: Path, digits_dataset: Path) -> None:
    (tmp_path / "slow_model.py").write_text(SLOW_EVALUATION)
    words = [f"--data={digits_dataset}", f"--model-dir={tmp_path / 'm'}", "--train-steps=3", "--batch-size=2"]
    with Forked("-m", "tpudata.train", "--model=slow_model:model_fn", *words, folder=tmp_path) as process:
        process.wait_for("evaluating\n")
        process.send_signal(signal.SIGTERM)
        assert process.wait() == 75
    assert tf.train.load_variable(str(tmp_path / "m" / "model.ckpt-3"), "global_step") == 3
    assert not (tmp_path / "m" / "evaluation.json").exists()

"""The programs in examples/, each run briefly in the way its docstring shows."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits

from tests.helpers.datasets import write_images
from tests.helpers.forked import run
from tpudata.cli import main

EXAMPLES = Path(__file__).parents[1] / "examples"


def _run(name: str, *flags: str) -> str:
    """What the program prints on stdout."""
    done = run(str(EXAMPLES / name), *flags)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Scikit-learn's digits, 28 pixels wide, in layout raw: what MNIST's programs read."""
    found = load_digits()
    wide = np.pad(np.kron(found.images, np.ones((1, 3, 3))), ((0, 0), (2, 2), (2, 2))) * (255 / 16)
    images = list(wide.round().astype(np.uint8)[..., None])
    parts = {"train": slice(0, 600), "validation": slice(600, 700)}
    return write_images(
        str(tmp_path_factory.mktemp("digits")),
        {split: images[part] for split, part in parts.items()},
        {split: [int(label) for label in found.target[part]] for split, part in parts.items()},
        shape=(28, 28, 1),
        layout="raw",
    ).path


def test_the_mnist_estimator_learns(digits: str, tmp_path: Path) -> None:
    files = [f"--train_file={digits}/train-*", f"--model_dir={tmp_path}"]
    flags = ["--use_tpu=False", "--master=", "--train_steps=60", "--batch_size=64"]
    out = _run("mnist_tpu_estimator.py", *files, *flags)
    found = re.search(r"^step 60: loss \d\.\d{4}, accuracy ([\d.]+)%$", out, re.MULTILINE)
    assert found is not None, out
    assert float(found[1]) > 60


@pytest.mark.matrix
def test_iris_replicas_learn_the_weights_of_one_device() -> None:
    four, one = (_run("iris_without_estimator.py", "--epochs=40", f"--num-replicas={count}") for count in (4, 1))
    assert four.startswith("replicas: 4\n")
    found = re.findall(r"epoch 40, train accuracy ([\d.]+)%, test accuracy ([\d.]+)%", four)
    assert min(map(float, found[0])) > 85
    # The gradients of all devices are summed, so the weights equal those of one device.
    assert four.splitlines()[-2:] == one.splitlines()[-2:]


def test_keras_learns_images(digits: str) -> None:
    out = _run("keras_images.py", f"--data={digits}", "--epochs=1", "--steps-per-epoch=40")
    found = re.search(r"^held-out accuracy ([\d.]+)% on 100 pictures$", out, re.MULTILINE)
    assert found is not None, out
    assert float(found[1]) > 50


@pytest.mark.matrix
def test_keras_learns_text(tmp_path: Path) -> None:
    text = "ROMEO:\nBut soft, what light through yonder window breaks?\n\nJULIET:\nO Romeo, Romeo!\n\n"
    (tmp_path / "text.txt").write_text(text * 60)
    words = ["--form=paragraphs", "--tokenizer=chars", "--sequence-length=32", f"--output={tmp_path / 'data'}"]
    assert main(["convert", "text", f"--input={tmp_path / 'text.txt'}", *words]) == 0
    flags = ["--steps=80", "--units=64", "--count=30", "--prompt=JULIET:\n", "--temperature=0.1"]
    out = _run("keras_text.py", f"--data={tmp_path / 'data'}", *flags)
    assert "JULIET:\nO Romeo" in out


def test_reports_a_folder_that_is_not_a_dataset(tmp_path: Path) -> None:
    done = run(str(EXAMPLES / "keras_text.py"), f"--data={tmp_path}")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith(f"tpudata: error: {tmp_path} has no manifest.json")
    assert "Traceback" not in done.stderr


def _jax(data: str, model: Path, steps: int, processes: int) -> list[subprocess.Popen[bytes]]:
    """Start to train the JAX example in some processes side by side."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        coordinator = f"127.0.0.1:{server.getsockname()[1]}"
    flags = [
        f"--data={data}",
        f"--model-dir={model}",
        f"--steps={steps}",
        "--batch-size=48",
        f"--processes={processes}",
    ]
    program = [sys.executable, str(EXAMPLES / "jax_processes.py"), *flags, f"--coordinator={coordinator}"]
    return [subprocess.Popen([*program, f"--process={process}"]) for process in range(processes)]


def _trained(running: list[subprocess.Popen[bytes]], model: Path) -> dict[str, np.ndarray]:
    """Return the checkpoint that processes leave."""
    assert {process.wait(timeout=300) for process in running} == {0}
    with np.load(model / "checkpoint.npz") as found:
        return dict(found)


@pytest.mark.matrix
def test_jax_processes_share_batches_and_resume(digits: str, tmp_path: Path) -> None:
    whole = _jax(digits, tmp_path / "alone", 20, processes=1)
    half = _jax(digits, tmp_path / "parts", 11, processes=1)
    assert _trained(half, tmp_path / "parts")["step"] == 11
    alone = _trained(whole, tmp_path / "alone")
    # Two processes train the other half.
    parts = _trained(_jax(digits, tmp_path / "parts", 20, processes=2), tmp_path / "parts")
    assert alone["step"] == 20
    for name, value in alone.items():
        np.testing.assert_allclose(parts[name], value, atol=1e-5)
    assert np.abs(alone["kernel"]).max() > 0.01

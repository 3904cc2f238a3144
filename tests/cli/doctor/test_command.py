"""`tpudata doctor`: its rows, its flags and the programs that it starts.

One test reads the flags of the rehearsal, which leave no trace in the rows.
"""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import types
from pathlib import Path

import jax
import pytest
import tensorflow as tf

from tests.helpers import forked
from tests.helpers.processes import ends_while_it_loads
from tpudata.cli import main
from tpudata.cli.doctor import command
from tpudata.cli.doctor.flags import list_rehearsal_flags, parse_flags


@pytest.fixture(autouse=True)
def _no_cloud(monkeypatch: pytest.MonkeyPatch) -> None:
    """Allow only credentials that a test names."""
    monkeypatch.delenv("STORAGE_EMULATOR_HOST", raising=False)
    monkeypatch.setenv("CLOUDSDK_AUTH_DISABLE_CREDENTIALS", "true")


def _rows(shown: str) -> dict[str, list[str]]:
    lines = [
        line.split(maxsplit=2) for line in shown.splitlines() if re.match(r"\w+ +(ok|none|warning|problem) ", line)
    ]
    return {name: rest for name, *rest in lines}


@pytest.fixture
def forked_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the probes be forks of a process that has imported TensorFlow, which takes each of them 5 s of CPU; they measure
    shortly.
    """
    program = (
        "import sys; from tpudata.cli.doctor import probe; probe._SECONDS = probe._FEEDING_SECONDS = 0.05;"
        " probe.main(sys.argv[2:])"
    )

    def run(words: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        assert words[1:3] == ["-m", "tpudata.cli.doctor.probe"]
        return forked.run("-c", program, *words[3:])

    monkeypatch.setattr(command, "subprocess", types.SimpleNamespace(**{**vars(subprocess), "run": run}))


def test_reports_every_check_of_this_machine(
    forked_probes: None, digits_dataset: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = [f"--data={digits_dataset}", "--model=mnist_cnn", "--batch-size=16", "--param=dropout=0.1", "--crop=8"]
    assert main(["doctor", *flags, "--time-limit=200"]) == 0
    rows = _rows(capsys.readouterr().out)
    assert f"tensorflow {tf.__version__}" in rows["versions"][1]
    state, text = rows["devices"]
    assert state == "ok"
    found = re.fullmatch(r"1 CPU: ([\d,]+) GFLOP/s \(float32\).*", text)
    assert found is not None
    assert int(found[1].replace(",", "")) >= 1
    assert f"jax {jax.__version__}, jaxlib" in rows["versions"][1]
    assert rows["TPU"][0] == "none"
    assert rows["TPU"][1].startswith("Replicas run on CPU devices. ")
    assert rows["credentials"][0] == "ok"
    assert rows["dataset"] == ["ok", "train 200 records, validation 90 records"]
    assert rows["files"] == ["ok", "4 shards with the sizes that the manifest says, and their indexes"]
    assert rows["shapes"][0] == "ok"
    assert rows["labels"] == ["ok", "labels 0 to 9 in 290 records; mnist_cnn has 10 outputs from 0"]
    assert re.fullmatch(r"shuffle window .* decoded records .*B free", rows["memory"][1])
    assert re.match(r"[\d,]+ records/s in batches of 16; pass --step-time MS", rows["feeding"][1])
    assert rows["rehearsal"] == ["ok", "mnist_cnn: nothing that a TPU would reject"]


def test_gives_up_on_probes_that_do_not_answer(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Every Python that the command starts hangs, as on a host that waits for the other hosts of its TPU.
    (tmp_path / "sitecustomize.py").write_text("import time\n\ntime.sleep(100)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    flags = ["--use-tpu", f"--data={tmp_path / 'none'}", "--model=mnist_cnn", "--time-limit=1"]
    assert main(["doctor", *flags]) == 1
    rows = _rows(capsys.readouterr().out)
    assert rows["TPU"][0] == "problem"
    assert rows["TPU"][1].startswith(
        "no answer within 1 second; raise --time-limit to wait longer. The hosts of one TPU"
    )
    assert rows["dataset"][0] == "problem"
    # The rehearsal is skipped for a missing dataset.
    assert "rehearsal" not in rows


@pytest.mark.parametrize(
    ("installed", "state", "text"),
    [
        (
            {"tensorflow_tpu": "2.20.0", "libtpu": "0.0.32"},
            "problem",
            "pip uninstall tensorflow_tpu tensorflow; pip install",
        ),
        ({"tensorflow_tpu": "2.20.0", "libtpu": "0.0.31.1"}, "ok", "libtpu 0.0.31.1"),
        ({"tensorflow-cpu": "2.21.0"}, "ok", "tensorflow-cpu 2.21.0"),
        ({"numpy": "2.4.6"}, "none", "numpy 2.4.6. Training needs the [tensorflow] extra"),
    ],
)
def test_names_the_installed_tensorflow_package(
    installed: dict[str, str],
    state: str,
    text: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def version(name: str) -> str:
        if name not in installed:
            raise importlib.metadata.PackageNotFoundError(name)
        return installed[name]

    monkeypatch.setattr(importlib.metadata, "version", version)
    monkeypatch.setattr(command, "_run_probe", lambda *_: ("none", "not asked"))
    assert main(["doctor"]) == (state == "problem")
    found = _rows(capsys.readouterr().out)["versions"]
    assert found[0] == state
    assert text in found[1]
    assert ("uninstall" in found[1]) == (state == "problem")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--model=mnist_cnn"], "--model needs a dataset. Pass --data"),
        (["--batch-size=8"], "--batch-size needs a dataset. Pass --data"),
        (["--crop=8"], "--crop needs a dataset"),
        (["--data=nowhere", "--step-time=3"], "--step-time needs the records of a step. Pass --batch-size"),
        (["--data=nowhere", "--batch-size=8", "--step-time=0"], "--step-time: '0' is not a number above 0"),
        (["--data=nowhere", "--batch-size=x"], "--batch-size: 'x' is not a whole number of 1 or more"),
        (["--data=nowhere", "--image-size=1y2"], "--image-size: '1y2' is not HEIGHTxWIDTH"),
        (["--model=mnist_cn", "--data=nowhere"], "Did you mean 'mnist_cnn'"),
        (["--param=a=1"], "--param is for a model. Pass --model"),
        (["--tpu=v5e-8"], "--tpu is for a model. Pass --model"),
        (["--time-limit=0"], "'0' is not a whole number"),
        (["--use-tp"], "did you mean --use-tpu?"),
    ],
)
def test_rejects_wrong_flags(flags: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", *flags]) == 2
    assert message in capsys.readouterr().err


def test_passes_the_tpu_and_the_parameters_to_the_rehearsal() -> None:
    passed = ["--train-split=a", "--tpu=v5e-8", "--batch-size=16", "--param=dropout=0.1"]
    assert list_rehearsal_flags(parse_flags(["--data=d", "--model=mnist_cnn", *passed])) == passed


def test_the_rehearsal_takes_the_split_of_the_configuration_file() -> None:
    assert list_rehearsal_flags(parse_flags(["--data=d", "--model=mnist_cnn", "--config=c.yaml"])) == [
        "--config=c.yaml"
    ]


def test_the_probe_ends_with_the_command(tmp_path: Path) -> None:
    assert ends_while_it_loads("tensorflow", tmp_path, "tpudata.cli.doctor.probe", "devices") == 1

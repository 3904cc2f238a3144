"""Errors without a TPU, each in a separate process, as they change TensorFlow for the rest of the process."""

import os
import time
import types
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

import tpudata
from tests.estimator.programs import make_model_fn, train_input_fn
from tests.helpers import forked
from tests.helpers.digits import write_digits
from tpudata.estimator import RunConfig, TPUConfig, TPUConnectionError, TPUEstimator
from tpudata.estimator.devices import tpu_system
from tpudata.estimator.devices.tpu_system import _gcloud

ESTIMATOR = """
from tpudata.estimator import RunConfig, TPUConfig, TPUEstimator
estimator = TPUEstimator(lambda features, labels: None, config=RunConfig(**{config}), train_batch_size=8)
print(estimator.model_dir)
estimator.train(lambda params: None, steps=1)
"""


def run(program: str, **environment: str) -> tuple[str, str, float]:
    begin = time.monotonic()
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith(("TPU_", "CLOUDSDK_"))]:
            patch.delenv(name)
        result = forked.run("-c", program, environment=environment, seconds=120)
    assert result.returncode != 0
    return result.stdout, result.stderr.strip().splitlines()[-1], time.monotonic() - begin


def test_this_machine_has_none() -> None:
    out, error, _ = run(ESTIMATOR.format(config={"model_dir": "unused"}))
    assert out.split() == ["unused"]  # only training connects
    assert "TPUConnectionError: TPU of this machine (there is no master, tpu_name or TPU_NAME)" in error
    assert "use_tpu=False" in error


@pytest.mark.parametrize("by", ["master", "tpu_name", "TPU_NAME"])
def test_nothing_listens(by: str) -> None:
    address = "grpc://127.0.0.1:9"  # TCP's discard service, which nobody has
    config = {"model_dir": "unused", **({} if by == "TPU_NAME" else {by: address})}
    environment = {by: address} if by == "TPU_NAME" else {}
    _, error, seconds = run(ESTIMATOR.format(config=config), **environment)
    assert f"nothing answers at '{address}'" in error
    assert "Connection refused" in error
    assert seconds < 60


SILENT = """
import socket
import tpudata
server = socket.socket()
server.bind(("127.0.0.1", 0))
server.listen(5)
with tpudata.tpu_system(f"grpc://127.0.0.1:{server.getsockname()[1]}", timeout=0.5):
    print("connected")
"""


def test_one_that_listens_but_never_answers() -> None:
    out, error, seconds = run(SILENT)
    assert not out
    assert "TPUConnectionError: TPU at grpc://127.0.0.1:" in error
    assert "no answer within 0.5 seconds" in error
    assert seconds < 60


def test_a_name_says_where_it_was_looked_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))
    monkeypatch.setenv("CLOUDSDK_CORE_PROJECT", "my-project")
    with (
        pytest.raises(TPUConnectionError, match=r"TPU 'my-tpu' \(zone my-zone, project my-project\): .*RunConfig"),
        tpudata.tpu_system("my-tpu", zone="my-zone", timeout=20),
    ):
        pass


def test_gcloud_s_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))
    for name in ("CLOUDSDK_CORE_PROJECT", "CLOUDSDK_COMPUTE_ZONE", "CLOUDSDK_ACTIVE_CONFIG_NAME"):
        monkeypatch.delenv(name, raising=False)
    assert _gcloud("core", "project") is None
    (tmp_path / "configurations").mkdir()
    for name in ("default", "work"):
        text = f"[core]\nproject = {name}-project\n[compute]\nzone = {name}-zone\n"
        (tmp_path / "configurations" / f"config_{name}").write_text(text)
    assert (_gcloud("core", "project"), _gcloud("compute", "zone")) == ("default-project", "default-zone")
    (tmp_path / "active_config").write_text("work\n")
    assert (_gcloud("core", "project"), _gcloud("compute", "zone")) == ("work-project", "work-zone")
    monkeypatch.setenv("CLOUDSDK_COMPUTE_ZONE", "other")
    assert _gcloud("compute", "zone") == "other"


def test_gcloud_s_settings_lie_at_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("CLOUDSDK_CONFIG", "CLOUDSDK_COMPUTE_ZONE", "CLOUDSDK_CORE_PROJECT", "CLOUDSDK_ACTIVE_CONFIG_NAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    folder = tmp_path / ".config" / "gcloud" / "configurations"
    folder.mkdir(parents=True)
    (folder / "config_default").write_text("[core]\nproject = home-project\n[compute]\nzone = home-zone\n")
    with (
        pytest.raises(TPUConnectionError, match=r"TPU 'my-tpu' \(zone home-zone, project home-project\)"),
        tpudata.tpu_system("my-tpu", timeout=20),
    ):
        pass
    # What is given goes first.
    with (
        pytest.raises(TPUConnectionError, match=r"TPU 'my-tpu' \(zone given-zone, project home-project\)"),
        tpudata.tpu_system("my-tpu", zone="given-zone", timeout=20),
    ):
        pass
    (folder / "config_default").write_text("project = home-project\n")
    with pytest.raises(TPUConnectionError, match=r"config_default cannot be read.*Pass the zone"):
        _gcloud("core", "project")


@pytest.mark.parametrize("address", ["127.0.0.1:9", "grpc://127.0.0.1:9", "grpc://[::1]:9", "grpc://127.0.0.1"])
def test_addresses(address: str) -> None:
    with pytest.raises(TPUConnectionError, match="nothing answers at"), tpudata.tpu_system(address, timeout=20):
        pass


def test_the_flags_of_the_command(tmp_path: Path) -> None:
    """Each of them arrives: a name is looked up in the zone and the project, and there is none."""
    write_digits(tmp_path / "d", {"train": 40})
    words = [
        f"--data={tmp_path / 'd'}",
        f"--model-dir={tmp_path / 'm'}",
        "--model=mnist_cnn",
        "--mode=train",
        "--use_tpu",
    ]
    words += ["--tpu_name=my-tpu", "--tpu-zone=my-zone", "--gcp_project=my-project"]
    _, error, _ = run(f"import sys; from tpudata.cli import main; sys.exit(main(['train', *{words!r}]))")
    assert error.startswith("tpudata: error: TPU 'my-tpu' (zone my-zone, project my-project): ")
    assert not (tmp_path / "m").exists()


class FakeTPU:
    """A resolver whose TPU is this machine's CPU."""

    def master(self) -> str:
        return "grpc://fake:8470"

    def get_tpu_system_metadata(self) -> Any:
        return types.SimpleNamespace(num_hosts=1)


@pytest.fixture
def connections(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record the calls to the TPU's system, in order."""
    done: list[str] = []
    monkeypatch.setattr(tf.config, "experimental_connect_to_cluster", lambda _: done.append("connect"))
    monkeypatch.setattr(tf.tpu.experimental, "initialize_tpu_system", lambda _: done.append("initialize"))
    monkeypatch.setattr(tf.tpu.experimental, "shutdown_tpu_system", lambda _: done.append("shut down"))
    monkeypatch.setattr(tf.distribute, "TPUStrategy", lambda _: tf.distribute.OneDeviceStrategy("CPU:0"))
    monkeypatch.setattr(tpu_system, "_connected", {})
    return done


def two_batches(params: dict[str, Any]) -> Any:
    return train_input_fn(params).take(2)


class Evaluating(tf.compat.v1.train.SessionRunHook):  # type: ignore[misc]
    """Evaluates and predicts in the middle of training."""

    def __init__(self, estimator: Any) -> None:
        self._estimator = estimator
        self.results: list[Any] = []

    def after_run(self, run_context: Any, run_values: Any) -> None:  # noqa: ARG002
        self.results.append(self._estimator.evaluate(two_batches))
        self.results.append(next(self._estimator.predict(two_batches)))


def on_tpu(folder: Path, tpu: Any) -> Any:
    config = RunConfig(TPUConfig(iterations_per_loop=2), cluster=tpu, model_dir=str(folder))
    sizes: dict[str, Any] = {"train_batch_size": 8, "eval_batch_size": 8, "predict_batch_size": 8}
    return TPUEstimator(make_model_fn(), config=config, **sizes)


def test_an_estimator_connects_once(connections: list[str], tmp_path: Path) -> None:
    estimator = on_tpu(tmp_path / "one", FakeTPU())
    hook = Evaluating(estimator)
    estimator.train(train_input_fn, max_steps=4, hooks=[hook])
    assert len(hook.results) == 4
    assert connections == ["connect", "initialize"]
    # Another one in the process would destroy the variables of the first.
    on_tpu(tmp_path / "two", FakeTPU()).train(train_input_fn, max_steps=2)
    assert connections == ["connect", "initialize"]
    assert estimator.train(train_input_fn, max_steps=6).get_variable_value("global_step") == 6


def test_a_system_is_shut_down_by_who_opened_it(connections: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tpu_system, "find_tpu", lambda *_: FakeTPU())
    with tpudata.tpu_system("grpc://fake:8470") as outer:
        with tpudata.tpu_system("grpc://fake:8470") as inner:
            assert inner is outer
        assert connections == ["connect", "initialize"]
    assert connections == ["connect", "initialize", "shut down"]
    with tpudata.tpu_system("grpc://fake:8470"):
        assert connections[3:] == ["connect", "initialize"]

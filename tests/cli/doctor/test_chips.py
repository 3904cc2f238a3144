"""The chips that `tpudata doctor` measures; CPU devices and counts stand in for a TPU, which no test has."""

from __future__ import annotations

import importlib.util

import jax
import pytest

from tpudata.cli.doctor.chips import NoTPUError, describe_chips, measure_multiplication_rate
from tpudata.devices.processes import tpu_pod
from tpudata.errors import TpudataError
from tpudata.estimator import TPUConnectionError


def test_measures_the_rate_of_two_devices() -> None:
    rate = measure_multiplication_rate(jax, jax.devices("cpu")[:2], "float32", row_count=128, duration=0.05)
    assert rate > 1e7


def test_rejects_a_device_that_multiplies_wrongly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jax.lax, "fori_loop", lambda *values: values[-1] * 2)
    with pytest.raises(TpudataError, match=r"multiplies matrices wrongly \(got the sum 256, expected 128\)"):
        measure_multiplication_rate(jax, jax.devices("cpu")[:1], "float32", row_count=128, duration=0.01)


def test_names_the_extra_without_jax(monkeypatch: pytest.MonkeyPatch) -> None:
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "jax" else find_spec(name))
    with pytest.raises(NoTPUError, match=r"A TPU needs the \[tpu\] extra"):
        describe_chips()


def test_names_the_supported_jax_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jax, "__version_info__", (0, 4, 35))
    with pytest.raises(NoTPUError, match=r"expected >=0\.\d+\.\d+,<0\.\d+\.\d+"):
        describe_chips()


def test_says_that_cpu_devices_replace_a_tpu() -> None:
    with pytest.raises(NoTPUError, match=r"^Replicas run on CPU devices\. use_tpu=True: "):
        describe_chips()


def test_chips_that_cannot_be_used_raise_a_connection_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tpu_pod, "count_chips", lambda: 4)
    with pytest.raises(TPUConnectionError):
        describe_chips()

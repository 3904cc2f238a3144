"""A missing TPU: each cause has its own message."""

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.helpers.forked import run
from tpudata.devices.errors import TPUConnectionError
from tpudata.devices.processes import device_search
from tpudata.devices.processes.device_search import find_local_devices, find_tpu_devices
from tpudata.errors import MissingExtraError


def found_without(monkeypatch: pytest.MonkeyPatch, *missing: str) -> None:
    """Hide some modules from importlib."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name in missing else name)


def test_names_the_extra_if_jax_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    found_without(monkeypatch, "jax", "libtpu")
    with pytest.raises(TPUConnectionError, match=r"^use_tpu=True: jax is not installed\. Run: pip install .*tpu"):
        find_tpu_devices()
    with pytest.raises(MissingExtraError, match=r"^TPUConfig\(num_replicas=2\) needs the \[tpu\] extra"):
        find_local_devices(2)


def test_says_that_libtpu_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    found_without(monkeypatch, "libtpu")
    with pytest.raises(
        TPUConnectionError, match=r"^use_tpu=True: libtpu \(the driver of TPUs\) is not installed\. Run:"
    ):
        find_tpu_devices()


@pytest.mark.parametrize(
    ("message", "platforms", "chips", "expected"),
    [
        ("Unknown backend: 'tpu' requested", None, 0, "this machine has no TPU chip. Run the program on a TPU VM"),
        (
            "Unable to initialize backend 'tpu': ABORTED: The TPU is already in use by process with pid 4711. Not attempting",
            "tpu,cpu",
            4,
            "the TPU is in use by the process 4711. End that process",
        ),
        (
            "Unable to initialize backend 'tpu': UNKNOWN: TPU initialization failed: open(/dev/vfio/0): Device or resource busy",
            "tpu,cpu",
            4,
            "the TPU is in use by another process.",
        ),
        ("Unknown backend tpu", "cpu", 4, r"jax may not use a TPU (got JAX_PLATFORMS=cpu, expected tpu,cpu). Unset"),
        (
            "Unable to initialize backend 'tpu': INTERNAL: a reason.\nmore",
            "tpu,cpu",
            4,
            "jax cannot start the TPU: Unable ",
        ),
    ],
    ids=["no chip", "in use", "busy", "hidden", "other"],
)
def test_explains_why_jax_finds_no_tpu(
    message: str, platforms: str | None, chips: int, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def devices(platform: str) -> Any:
        assert platform == "tpu"
        raise RuntimeError(message)

    found_without(monkeypatch)
    jax = SimpleNamespace(devices=devices, config=SimpleNamespace(jax_platforms=platforms))
    monkeypatch.setitem(sys.modules, "jax", jax)
    monkeypatch.setattr(device_search, "count_chips", lambda: chips)
    with pytest.raises(TPUConnectionError) as caught:
        find_tpu_devices()
    assert str(caught.value).startswith(f"use_tpu=True: {expected}")
    assert "\n" not in str(caught.value)


def test_the_installed_jax_reports_that_there_is_no_chip(tmp_path: Path) -> None:
    """Run the installed jax with a driver that does not exist."""
    (tmp_path / "libtpu.py").write_text("def get_library_path(): return '/nowhere/libtpu.so'\n")
    code = f"""
import sys
sys.path.insert(0, {str(tmp_path)!r})
import jax
jax.config.update("jax_platforms", None)
from tpudata.devices.processes.device_search import find_tpu_devices
find_tpu_devices()
"""
    error = run("-c", code).stderr
    assert "TPUConnectionError: use_tpu=True: this machine has no TPU chip." in error

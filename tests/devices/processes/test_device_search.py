"""Why there is no TPU, and names of TPUs: each cause by its own message."""

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.helpers.forked import run
from tpudata.devices.processes import device_search
from tpudata.devices.processes.device_search import local_devices, tpu_devices
from tpudata.devices.processes.topology import tpu_topology
from tpudata.errors import MissingExtraError
from tpudata.estimator import RunConfig, TPUConnectionError


def found_without(monkeypatch: pytest.MonkeyPatch, *missing: str) -> None:
    """Let importlib find all modules but some."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name in missing else name)


def test_jax_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    found_without(monkeypatch, "jax", "libtpu")
    with pytest.raises(TPUConnectionError, match=r"^use_tpu=True: jax is not installed\. Run: pip install .*tpu"):
        tpu_devices()
    with pytest.raises(MissingExtraError, match=r"^TPUConfig\(num_replicas=2\) needs the \[tpu\] extra"):
        local_devices(2)


def test_libtpu_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    found_without(monkeypatch, "libtpu")
    with pytest.raises(
        TPUConnectionError, match=r"^use_tpu=True: libtpu \(the driver of TPUs\) is not installed\. Run:"
    ):
        tpu_devices()


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
def test_jax_finds_no_tpu(
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
        tpu_devices()
    assert str(caught.value).startswith(f"use_tpu=True: {expected}")
    assert "\n" not in str(caught.value)


def test_jax_itself_finds_no_chip_here(tmp_path: Path) -> None:
    """This machine's jax, with a driver that is no driver."""
    (tmp_path / "libtpu.py").write_text("def get_library_path(): return '/nowhere/libtpu.so'\n")
    code = f"""
import sys
sys.path.insert(0, {str(tmp_path)!r})
import jax
jax.config.update("jax_platforms", None)
from tpudata.devices.processes.device_search import tpu_devices
tpu_devices()
"""
    error = run("-c", code).stderr
    assert "TPUConnectionError: use_tpu=True: this machine has no TPU chip." in error


def resolver(address: str) -> Any:
    return SimpleNamespace(master=lambda: address)


@pytest.mark.parametrize(
    "arguments",
    [{}, {"master": ""}, {"master": "local"}, {"tpu_name": "local"}, {"tpu_name": "mine"}, {"cluster": resolver("")}],
    ids=["nothing", "empty master", "local master", "local name", "own name", "local resolver"],
)
def test_accepts_names_of_this_machine(arguments: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TPU_NAME", "mine")
    found_without(monkeypatch, "libtpu")
    with pytest.raises(TPUConnectionError, match="libtpu"):  # so the name is right
        tpu_topology(RunConfig(**arguments))


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ({"master": "grpc://10.0.0.2:8470"}, "NAME"),
        ({"tpu_name": "v3"}, "v3"),
        ({"cluster": resolver("grpc://10.0.0.2:8470")}, "NAME"),
    ],
)
def test_says_how_to_run_on_another_machines_tpu(
    arguments: dict[str, Any], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TPU_NAME", raising=False)
    with pytest.raises(TPUConnectionError) as caught:
        tpu_topology(RunConfig(**arguments))
    assert str(caught.value).startswith(
        f"RunConfig({next(iter(arguments))}=...): programs run on the machine of their TPU"
    )
    assert f"gcloud compute tpus tpu-vm ssh {name} --worker=all --command=" in str(caught.value)


def test_the_address_in_tpu_name_is_not_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TPU_NAME", "grpc://10.0.0.2:8470")
    with pytest.raises(TPUConnectionError):
        tpu_topology(RunConfig(master="grpc://10.0.0.2:8470"))

"""Names of TPUs: a program runs on the machine of its TPU."""

from types import SimpleNamespace
from typing import Any

import pytest

from tpudata.estimator import RunConfig, TPUConnectionError
from tpudata.estimator.devices.tpu_names import check_names


def resolver(address: str) -> Any:
    return SimpleNamespace(master=lambda: address)


@pytest.mark.parametrize(
    "arguments",
    [{}, {"master": ""}, {"master": "local"}, {"tpu_name": "local"}, {"tpu_name": "mine"}, {"cluster": resolver("")}],
    ids=str,
)
def test_accepts_names_of_this_machine(arguments: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TPU_NAME", "mine")
    check_names(RunConfig(**arguments))


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
        check_names(RunConfig(**arguments))
    assert str(caught.value).startswith(
        f"RunConfig({next(iter(arguments))}=...): programs run on the machine of their TPU"
    )
    assert f"gcloud compute tpus tpu-vm ssh {name} --worker=all --command=" in str(caught.value)


def test_the_address_in_tpu_name_is_not_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TPU_NAME", "grpc://10.0.0.2:8470")
    with pytest.raises(TPUConnectionError):
        check_names(RunConfig(master="grpc://10.0.0.2:8470"))

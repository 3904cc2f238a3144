"""The devices that a RunConfig describes: TPU names, and input modes that several processes do not support."""

from types import SimpleNamespace
from typing import Any

import pytest

from tpudata.errors import UsageError
from tpudata.estimator import InputPipelineConfig, RunConfig, TPUConfig, TPUConnectionError
from tpudata.estimator.config.run_devices import connect_tpu, join_cluster


def resolver(address: str) -> Any:
    return SimpleNamespace(master=lambda: address)


@pytest.mark.parametrize(
    "arguments",
    [{}, {"master": ""}, {"master": "local"}, {"tpu_name": "local"}, {"tpu_name": "mine"}, {"cluster": resolver("")}],
    ids=["nothing", "empty master", "local master", "local name", "own name", "local resolver"],
)
def test_accepts_names_of_this_machine(arguments: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TPU_NAME", "mine")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "libtpu" else name)
    with pytest.raises(TPUConnectionError, match="libtpu"):  # so the name is right
        connect_tpu(RunConfig(**arguments))


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
        connect_tpu(RunConfig(**arguments))
    assert str(caught.value).startswith(
        f"RunConfig({next(iter(arguments))}=...): programs run on the machine of their TPU"
    )
    assert f"gcloud compute tpus tpu-vm ssh {name} --worker=all --command=" in str(caught.value)


def test_an_address_in_tpu_name_is_not_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TPU_NAME", "grpc://10.0.0.2:8470")
    with pytest.raises(TPUConnectionError):
        connect_tpu(RunConfig(master="grpc://10.0.0.2:8470"))


BROADCAST = TPUConfig(per_host_input_for_training=InputPipelineConfig.BROADCAST)
CLUSTER = {"cluster": {"worker": ["a:1", "b:2"]}, "task": {"type": "worker", "index": 0}}


def test_processes_of_a_cluster_reject_broadcast() -> None:
    with pytest.raises(UsageError, match=r"^TPUConfig.*BROADCAST"):
        join_cluster(RunConfig(BROADCAST, tf_config=CLUSTER))


def test_workers_of_a_pod_reject_broadcast(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error comes before a worker waits for the others."""
    monkeypatch.setenv("TPU_WORKER_HOSTNAMES", "host-a,host-b")
    monkeypatch.setenv("TPU_WORKER_ID", "1")
    with pytest.raises(UsageError, match=r"BROADCAST\): each process of a cluster or a TPU pod reads separate rows"):
        connect_tpu(RunConfig(BROADCAST))

"""The devices of a run in one process."""

from typing import Any

import pytest

from tests.helpers.forked import run
from tpudata.devices.processes.peers import Peers
from tpudata.devices.processes.topology import Topology, make_local_topology

MAKE = """
from tpudata.devices.processes.topology import make_local_topology
import jax
jax.config.update("jax_num_cpu_devices", -1)  # The default, in place of the tests' number.
{before}
topology = make_local_topology(3)
print(topology.num_replicas, topology.is_sharded, len(set(topology.devices)), topology.devices == topology.local_devices)
print(len(jax.devices("cpu")))
make_local_topology({after})
"""


def of(before: str, after: int = 2) -> Any:
    return run("-c", MAKE.format(before=before, after=after))


def test_makes_as_many_cpu_devices_as_replicas() -> None:
    assert of("").stdout.split() == ["3", "True", "3", "True", "3"]


def test_uses_the_devices_that_the_program_made() -> None:
    assert of("jax.config.update('jax_num_cpu_devices', 5)").stdout.split()[-1] == "5"
    assert of("jax.config.update('jax_num_cpu_devices', 5); jax.devices()").stdout.split()[-1] == "5"


def test_rejects_more_replicas_than_devices_once_jax_has_started() -> None:
    error = of("", after=4).stderr
    assert (
        "UsageError: TPUConfig(num_replicas=4) needs 4 CPU devices of jax, which has already started with 3." in error
    )
    assert "jax.config.update('jax_num_cpu_devices', 4)" in error


@pytest.mark.parametrize("number", [None, 1])
def test_one_replica_is_plain_tensorflow(number: int | None) -> None:
    topology = make_local_topology(number)
    assert (topology.num_replicas, topology.num_hosts, topology.num_local_replicas, topology.devices) == (1, 1, 1, ())
    assert not topology.is_sharded


class Three(Peers):
    index, count = 1, 3


def test_each_process_gets_its_part_of_the_devices() -> None:
    topology = Topology(6, ("a", "b", "c", "d", "e", "f"), peers=Three())
    assert (topology.num_hosts, topology.num_local_replicas) == (3, 2)
    assert (topology.first_replica, topology.local_devices) == (2, ("c", "d"))


def test_one_core_of_a_tpu_is_fed_as_a_tpu() -> None:
    assert Topology(1, ("core",), is_tpu=True).is_sharded

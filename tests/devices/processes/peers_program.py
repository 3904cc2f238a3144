"""A program that each of several processes runs: `python -m tests.devices.processes.peers_program JSON`.

It joins the others, adds numbers with them by the peers and by the devices, and then does so again and again until a process gets
SIGTERM. The JSON object has num_replicas, steps (the number of rounds), devices (whether rounds use the devices), and `task`: the
content of TF_CONFIG, or a list of three numbers.
"""

import json
import logging
import signal
import sys
import time
from typing import Any

import numpy as np

from tpudata.devices.processes.cluster_task import ClusterTask
from tpudata.devices.processes.topology import Topology, join_cluster


def sum_of_devices(topology: Topology) -> Any:
    """Return a function that adds up a number of each device, from 1, on all devices."""
    import jax

    mesh = jax.sharding.Mesh(topology.devices, ("replicas",))
    split = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("replicas"))
    everywhere = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    program = jax.jit(jax.numpy.sum, out_shardings=everywhere)
    first = topology.first_replica + 1
    local = np.arange(first, first + topology.num_local_replicas, dtype=np.float32)
    numbers = jax.make_array_from_process_local_data(split, local, (topology.num_replicas,))

    def add() -> float:
        return float(jax.block_until_ready(program(numbers)))

    return add


def main(options: dict[str, Any]) -> None:
    """Join, exchange, and end."""
    logging.basicConfig(level=logging.WARNING, format="%(message)s", force=True)
    steps, by_devices = options["steps"], options.get("devices", False)
    terminated: list[int] = []
    found = options["task"]
    task = (
        ClusterTask.from_arguments("RunConfig", *found) if isinstance(found, list) else ClusterTask.from_config(found)
    )
    topology = join_cluster(task, options.get("num_replicas"))
    signal.signal(signal.SIGTERM, lambda number, _: terminated.append(number))
    peers, add = topology.peers, sum_of_devices(topology)
    own = peers.index + 1
    found = {
        "devices": [device.process_index for device in topology.devices],
        "replicas": [topology.num_replicas, topology.num_local_replicas, topology.first_replica, topology.num_hosts],
        "is_sharded": topology.is_sharded,
        "summed": peers.sum_numbers([own, own << 40]),
        "least": peers.min_numbers([own, -own]),
        "any": [peers.any(own == 2), peers.any(False)],
        "chiefs": [peers.broadcast_number(own), peers.broadcast_bytes(b"chief" if peers.is_chief else b"").decode()],
        "of_devices": add(),
    }
    print("found", json.dumps(found), flush=True)
    with peers.translate_errors():
        for step in range(steps):
            if by_devices:
                with peers.limit_wait():
                    add()
            ends = peers.any(bool(terminated))
            if step == 5:
                print("in the rounds", flush=True)
            if ends:
                print(f"terminated at round {step}", flush=True)
                sys.exit(75)
            time.sleep(0.01)
    print("done", flush=True)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))

"""One of two processes that are fed stacks: print each step's sum over all replicas, the same in both, as JSON.

python -m tests.devices.batches.feed_program COORDINATOR PROCESS STEPS RULE
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

import jax
import numpy as np
import tensorflow as tf
from jax.experimental import multihost_utils
from jax.sharding import Mesh

from tpudata.devices.batches.feeder import ShortData, StackFeed
from tpudata.devices.processes.peers import Peers

REPLICAS = 2


class AllPeers(Peers):
    """The processes of jax.distributed."""

    def __init__(self) -> None:
        self.index, self.count = jax.process_index(), jax.process_count()

    def min_numbers(self, numbers: Sequence[int]) -> list[int]:
        gathered = multihost_utils.process_allgather(np.array(numbers, np.int32))
        return [int(number) for number in np.asarray(gathered).min(0)]


def main() -> None:
    """Feed elements 100, 101, ... in process 0 and 200, 201, ... in process 1, and add each step up on the devices."""
    coordinator, process, steps, rule = sys.argv[1:]
    jax.config.update("jax_num_cpu_devices", REPLICAS)
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(coordinator, 2, int(process))
    begin = 100 * (1 + int(process))
    dataset = tf.data.Dataset.range(begin, begin + REPLICAS * int(steps))
    mesh = Mesh(np.array(jax.devices()), ("replicas",))
    peers = AllPeers()
    iteration = StackFeed(
        dataset, mesh, REPLICAS, 2, is_endless=False, peers=peers, short_data=ShortData[rule]
    ).iterate()
    total = jax.jit(lambda array, step: array[step].sum())
    found = []
    with jax.enable_x64(True):
        while (portion := iteration.take(1)) is not None:
            found.append(int(total(portion.arrays[0], portion.start)))
    iteration.close()
    print(json.dumps(found), flush=True)
    jax.distributed.shutdown()


if __name__ == "__main__":
    main()

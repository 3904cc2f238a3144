"""One of several processes of a JAX program: writes its local parts of the global batches as JSON.

python -m tests.input.jax_program DIR COORDINATOR PROCESSES PROCESS DEVICES SPLIT ORDER
"""

from __future__ import annotations

import json
import sys
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from tpudata import as_jax, make_input_fn

BATCH = 24


def parts(array: Any) -> dict[int, list[Any]]:
    """Return the rows of this process by the number of the first."""
    return {shard.index[0].start or 0: np.asarray(shard.data).tolist() for shard in array.addressable_shards}


def main() -> None:
    """Print the labels and weights of batches from step 3 on, of five in training."""
    path, coordinator, processes, process, devices, split, order = sys.argv[1:]
    jax.config.update("jax_num_cpu_devices", int(devices))
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(coordinator, int(processes), int(process))
    training = split == "train"
    input_fn = make_input_fn(path, split, training=training, seed=5)
    every = np.array(jax.devices())
    if order == "mixed":  # The first devices of all processes, then the second ones.
        every = every.reshape(int(processes), -1).T.reshape(-1)
    batches = as_jax(input_fn, BATCH, sharding=Mesh(every, ("data",)), start_step=3 if training else 0)
    found = []
    total = jax.jit(lambda labels: labels.sum())
    for features, labels in batches:
        step = {"labels": parts(labels), "sum": int(total(labels))}
        if not training:
            step["weights"] = parts(features["weights"])
        found.append(step)
        if training and len(found) == 5:
            break
    batches.close()
    print(json.dumps(found), flush=True)
    jax.distributed.shutdown()


if __name__ == "__main__":
    main()

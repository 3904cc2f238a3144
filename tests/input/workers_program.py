"""The batches of one of several workers, as one JSON object; in a process by itself, as a cluster comes before any operation.

python -m tests.input.workers_program remote DIR ADDRESS ADDRESS    a client whose two hosts are servers that read its files
python -m tests.input.workers_program multi DIR                     one worker of MultiWorkerMirroredStrategy, by TF_CONFIG
"""

from __future__ import annotations

import json
import sys
from typing import Any

import tensorflow as tf

from tests.input.clusters import read_bytes
from tpudata import make_input_fn

TOTAL = 24
STEPS = 20


def labels(strategy: Any, dataset: Any) -> list[list[int]]:
    """Return the labels of each step on this worker's replicas."""
    found = []
    for _, (_, batch) in zip(range(STEPS), dataset, strict=False):
        parts = [part.numpy().tolist() for part in strategy.experimental_local_results(batch)]
        found.append([label for part in parts for label in part])
    return found


def remote(path: str, addresses: list[str]) -> dict[str, Any]:
    """Feed from two hosts that one client controls, as it controls those of a TPU pod."""
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec({"worker": addresses}), rpc_layer="grpc"
    )
    tf.config.experimental_connect_to_cluster(resolver, make_master_device_default=False)
    found: dict[str, Any] = {}
    for training in (True, False):
        input_fn = make_input_fn(path, "train", training=training, seed=3)
        hosts, before = [], read_bytes("self")
        for host in range(2):
            strategy = tf.distribute.OneDeviceStrategy(f"/job:worker/task:{host}/device:CPU:0")
            context = tf.distribute.InputContext(2, host, 2)
            dataset = strategy.distribute_datasets_from_function(
                lambda _, context=context, input_fn=input_fn: input_fn({"batch_size": TOTAL // 2}, context)
            )
            hosts.append(labels(strategy, dataset))
        name = "training" if training else "evaluation"
        found[name] = [one + other for one, other in zip(*hosts, strict=True)]
        found[f"{name} bytes"] = read_bytes("self") - before
    return found


def multi(path: str) -> dict[str, Any]:
    """Feed one of two workers, each a client of its devices."""
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    input_fn = make_input_fn(path, "train", training=True, seed=3)
    exact = make_input_fn(path, "train", training=False)
    return {
        "from function": labels(
            strategy,
            strategy.distribute_datasets_from_function(
                lambda context: input_fn({"batch_size": context.get_per_replica_batch_size(TOTAL)}, context)
            ),
        ),
        "dataset": labels(strategy, strategy.experimental_distribute_dataset(input_fn({"batch_size": TOTAL}))),
        "evaluation": labels(strategy, strategy.experimental_distribute_dataset(exact({"batch_size": TOTAL}))),
    }


if __name__ == "__main__":
    kind, folder, *rest = sys.argv[1:]
    print(json.dumps(remote(folder, rest) if kind == "remote" else multi(folder)))

"""Prints what the hosts of a TPU pod are fed, as JSON; a separate process, as a cluster comes before any operation.

python -m tests.estimator.feeding.pod_program DIR ADDRESS...

TensorFlow's own TPUStrategy calls for the data, of two cores for each address; a server there stands for a host. The cores are not
there, so data stays in the hosts' memory: that is the one thing that differs from a pod, and no step can run.
"""

from __future__ import annotations

import functools
import json
import os
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import tensorflow as tf

from tpudata import make_input_fn
from tpudata.estimator import InputPipelineConfig, ModeKeys, RunConfig, TPUConfig
from tpudata.estimator.devices.topology import Topology, tpu_hosts
from tpudata.estimator.feeding.deployment import Call, Deployment
from tpudata.estimator.feeding.feed import make_feed
from tpudata.estimator.feeding.iteration import iterator_of, next_in_loop
from tpudata.estimator.feeding.signature import call_input_fn

CORES = 2  # of a host
BATCH = 24
STEPS = 4
Mode = InputPipelineConfig


class Resolver(tf.distribute.cluster_resolver.TPUClusterResolver):  # type: ignore[misc]  # TensorFlow is untyped
    """Describes a TPU whose hosts are at addresses."""

    def __init__(self, addresses: list[str]) -> None:
        self.task_type = self.task_id = None
        self.rpc_layer = "grpc"
        self._addresses = addresses

    def master(self, *_: Any, **__: Any) -> str:
        return f"grpc://{self._addresses[0]}"

    def cluster_spec(self) -> Any:
        return tf.train.ClusterSpec({"worker": self._addresses})

    def get_tpu_system_metadata(self) -> Any:
        hosts = len(self._addresses)
        names = [f"/job:worker/replica:0/task:{host}/device:TPU:{i}" for host in range(hosts) for i in range(CORES)]
        devices = [SimpleNamespace(name=name, device_type="TPU") for name in names]
        return SimpleNamespace(
            num_hosts=hosts, num_cores=len(names), num_of_cores_per_host=CORES, topology=None, devices=devices
        )


class HostMemory:
    """A TPUStrategy, whose cores take their data from their hosts' memory."""

    def __init__(self, strategy: Any) -> None:
        self._strategy = strategy

    def __getattr__(self, name: str) -> Any:
        return getattr(self._strategy, name)

    def distribute_datasets_from_function(self, function: Any) -> Any:
        options = tf.distribute.InputOptions(experimental_fetch_to_device=False)
        return self._strategy.distribute_datasets_from_function(function, options)


class Pod:
    """The topology, and how input_fn was called for it."""

    def __init__(self, addresses: list[str]) -> None:
        resolver = Resolver(addresses)
        tf.config.experimental_connect_to_cluster(resolver, make_master_device_default=False)
        strategy = HostMemory(tf.distribute.TPUStrategy(resolver))
        hosts = tpu_hosts(strategy)
        self.topology = Topology(strategy, num_hosts=len(hosts), is_tpu=True, host_devices=hosts)
        self.calls: list[dict[str, Any]] = []

    def feed(self, input_fn: Any, mode: str, pipeline: Mode, **config: Any) -> Any:
        deployment = Deployment(mode, self.topology, TPUConfig(per_host_input_for_training=pipeline, **config), BATCH)
        self.calls = []

        def call(call: Call) -> Any:
            params = deployment.params(call)
            device, *numbers = params["context"].current_input_fn_deployment()
            found = {"device": device, "made on": tf.constant(0).device, "numbers": numbers, "host": call.host}
            self.calls.append({**found, "batch_size": params["batch_size"]})
            context = call.input_context(call.replicas if pipeline is Mode.PER_HOST_V2 else 1)
            return call_input_fn(input_fn, mode, params, RunConfig(), context)

        return make_feed(call, deployment, None)

    def parts(self, value: Any) -> list[Any]:
        return list(self.topology.strategy.experimental_local_results(value))


def with_pid(dataset: Any) -> Any:
    """Add to each feature dict which process opens files: the first word of a file that each process has for itself."""
    lines = tf.data.TextLineDataset("/proc/self/stat").map(lambda line: tf.strings.split(line)[0]).repeat()
    return tf.data.Dataset.zip((dataset, lines)).map(add_pid)


def add_pid(element: Any, word: Any) -> Any:
    features, labels = element
    rows = tf.shape(features["image"])[0]
    pids = tf.ensure_shape(tf.fill([rows], tf.strings.to_number(word, tf.int32)), features["image"].shape[:1])
    return {**features, "pid": pids}, labels


def steps(pod: Pod, feed: Any, mode: str) -> dict[str, Any]:
    """Return the labels of real rows, the processes that read them and where the batches lie, by step and core."""
    found: dict[str, list[Any]] = {"labels": [], "pids": [], "devices": []}
    iteration = feed.iterate()
    for _ in range(STEPS if feed.endless else 1000):
        element = iteration.next()
        if element is None:
            break
        features, second = element
        if mode == ModeKeys.PREDICT:
            labels, masks = features["label"], second
        else:
            labels, masks = second, features.get("weights", features["pid"])
        parts = zip(pod.parts(labels), pod.parts(masks), strict=True)
        found["labels"].append([part.numpy()[mask.numpy() > 0].tolist() for part, mask in parts])
        found["pids"].append([sorted({*part.numpy().tolist()} - {0}) for part in pod.parts(features["pid"])])
        found["devices"].append([part.backing_device for part in pod.parts(features["image"])])
    iteration.close()
    return found


def in_a_loop(pod: Pod, feed: Any) -> dict[str, Any]:
    """Take steps as the loop of training does, in one function."""
    iteration = feed.iterate()
    strategy = pod.topology.strategy

    def step(*tensors: Any) -> Any:
        _, element = next_in_loop(iterator_of(iteration.spec, tensors), iteration.end, strategy)
        features, labels = element()
        return tuple(map(strategy.experimental_local_results, (features["image"], labels, features["pid"])))

    taken = tf.function(step, autograph=False).get_concrete_function(*iteration.tensors)
    results = [taken(*iteration.tensors) for _ in range(STEPS)]
    iteration.close()
    return {
        "labels": [[part.numpy().tolist() for part in labels] for _, labels, _ in results],
        "pids": [[sorted({*part.numpy().tolist()}) for part in pids] for *_, pids in results],
        "devices": [[part.backing_device for part in images] for images, *_ in results],
        "operations": sorted({item.type for item in taken.graph.get_operations()}),
    }


def error_of(function: Callable[[], Any]) -> list[str]:
    try:
        function()
    except Exception as error:
        return [type(error).__name__, str(error)]
    return []


def main(path: str, addresses: list[str]) -> dict[str, Any]:
    pod = Pod(addresses)
    found: dict[str, Any] = {"pid": os.getpid()}
    # The loop of training takes PER_HOST_V1; an evaluation has PER_HOST_V2, and a prediction's hosts are those of an evaluation.
    cases = (
        (ModeKeys.TRAIN, Mode.PER_HOST_V1),
        (ModeKeys.TRAIN, Mode.PER_SHARD_V1),
        (ModeKeys.EVAL, Mode.PER_HOST_V2),
        (ModeKeys.PREDICT, Mode.PER_HOST_V1),
    )
    for mode, pipeline in cases:
        make = make_input_fn(path, "train", training=mode == ModeKeys.TRAIN, seed=3)
        feed = pod.feed(functools.partial(called, make, mode), mode, pipeline)
        taken = in_a_loop if cases[0] == (mode, pipeline) else functools.partial(steps, mode=mode)
        found[f"{mode} {pipeline.name}"] = {"calls": pod.calls, **taken(pod, feed)}
    found["uneven"] = {
        name: steps_of_numbers(pod, mode, weights)
        for name, mode, weights in (
            ("train", ModeKeys.TRAIN, False),
            ("evaluate", ModeKeys.EVAL, True),
            ("predict", ModeKeys.PREDICT, False),
        )
    }
    found["errors"] = {
        "ends": error_of(lambda: steps_of_numbers(pod, ModeKeys.EVAL, False)),
        "broadcast": error_of(lambda: pod.feed(make, ModeKeys.TRAIN, Mode.BROADCAST)),
        "sliced": error_of(
            lambda: pod.feed(make, ModeKeys.EVAL, Mode.PER_HOST_V1, eval_training_input_configuration=Mode.SLICED)
        ),
        "python": error_of(lambda: pod.feed(python, ModeKeys.TRAIN, Mode.PER_HOST_V1)),
        "tensors": error_of(lambda: pod.feed(tensors, ModeKeys.TRAIN, Mode.PER_HOST_V1)),
        "shapes": error_of(lambda: pod.feed(other_shapes, ModeKeys.TRAIN, Mode.PER_HOST_V1)),
    }
    return found


def called(input_fn: Any, mode: str, params: Any, input_context: Any) -> Any:
    dataset = input_fn(params, input_context)
    if mode == ModeKeys.PREDICT:  # Labels are dropped there.
        dataset = dataset.map(lambda features, labels: ({**features, "label": labels}, labels))
    return with_pid(dataset)


def steps_of_numbers(pod: Pod, mode: str, weights: bool) -> list[list[list[int]]]:
    """Take what hosts give of which the first has two steps and the other three."""

    def input_fn(params: Any) -> Any:
        host = params["context"].current_host
        data = tf.data.Dataset.range(100 * host, 100 * host + (2 + host) * params["batch_size"])
        batches = data.batch(params["batch_size"], drop_remainder=True)
        if not weights:
            return batches.map(lambda number: {"number": number})
        return batches.map(lambda number: {"number": number, "weights": tf.ones_like(number, tf.float32)})

    iteration = pod.feed(input_fn, mode, Mode.PER_HOST_V1).iterate()
    found = []
    if mode == ModeKeys.TRAIN:
        strategy = pod.topology.strategy

        def step(*tensors: Any) -> Any:
            has_data, element = next_in_loop(iterator_of(iteration.spec, tensors), iteration.end, strategy)
            return has_data, strategy.experimental_local_results(element()["number"])

        taken = tf.function(step, autograph=False).get_concrete_function(*iteration.tensors)
        for has_data, numbers in iter(lambda: taken(*iteration.tensors), None):
            if not has_data:
                break
            found.append([part.numpy().tolist() for part in numbers])
        return found
    for element in iter(iteration.next, None):
        features, masks = element if mode == ModeKeys.PREDICT else (element, element.get("weights", element["number"]))
        parts = zip(pod.parts(features["number"]), pod.parts(masks), strict=True)
        found.append([number.numpy()[mask.numpy() > 0].tolist() for number, mask in parts])
    return found


def python(params: Any) -> Any:
    rows = tf.data.Dataset.range(1000).repeat()
    rows = rows.map(lambda row: tf.ensure_shape(tf.numpy_function(abs, [row], tf.int64), []))
    return rows.batch(params["batch_size"], drop_remainder=True)


def tensors(params: Any) -> Any:
    return {"x": tf.zeros([params["batch_size"], 2])}


def other_shapes(params: Any) -> Any:
    row = tf.zeros([1 + params["context"].current_host])
    return tf.data.Dataset.from_tensors(row).repeat().batch(params["batch_size"], drop_remainder=True)


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], sys.argv[2:])))

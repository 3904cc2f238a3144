"""1, 2, 4 and 8 devices, and 2 processes of 2, train as plain TensorFlow does, with the tolerances of scripts/oracle_tf215.

Each replica normalizes its own rows, so all replicas get the same two images here, with different labels: then the statistics of a
replica are those of the whole batch, and so are the gradients, as batch norm's is linear in those of its results.
"""

from __future__ import annotations

import functools
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tf_keras.src.legacy_tf_layers import normalization

from tests.estimator import programs
from tests.estimator.programs import Program, make_estimator, own_variables, side_by_side, v1
from tests.estimator.tracing.test_custom_optimizers import custom
from tests.helpers.forked import Forked
from tpudata.devices.processes.device_search import find_local_devices
from tpudata.devices.processes.topology import Topology
from tpudata.estimator import CrossShardOptimizer, tpu_estimator
from tpudata.models.training.update_rules import Lars

STEPS, HALF = 50, 25
ROWS = 16
RELATIVE, ABSOLUTE = 1e-4, 1e-6

OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "sgd": v1.train.GradientDescentOptimizer,
    "momentum": lambda rate: v1.train.MomentumOptimizer(rate, 0.9, use_nesterov=True),
    "adam": lambda rate: v1.train.AdamOptimizer(0.1 * rate),
    "lars": lambda rate: Lars(10 * rate, 0.9, 1e-3, 0.01, lambda variable: variable.shape.rank > 1),
    "custom": lambda rate: custom.ByHandMomentum(rate),
}


def input_fn(params: dict[str, Any]) -> Any:
    """Repeat batches of the same two images, with labels of all rows."""
    random = np.random.default_rng(3)
    images = np.tile(random.normal(size=(10, 2, 6, 6, 1)).astype(np.float32), (1, ROWS // 2, 1, 1, 1))
    labels = random.integers(0, 3, (10, ROWS))
    size = params["batch_size"]
    data = tf.data.Dataset.from_tensor_slices(({"x": images}, labels)).unbatch()
    return data.repeat().skip(params.get("skip", 0)).batch(size, drop_remainder=True)


def convolution(optimizer: Callable[[Any], Any]) -> Program:
    """A convolution with batch norm and UPDATE_OPS, and a rate that decays."""

    def program(features: Any, labels: Any, steps: Any) -> tuple[Any, Any]:
        random = np.random.default_rng(5)
        start = {"kernel": random.normal(0, 0.4, (3, 3, 1, 4)), "dense": random.normal(0, 0.3, (4, 3))}
        weights = {
            name: v1.get_variable(name, initializer=tf.constant(value, tf.float32)) for name, value in start.items()
        }
        net = tf.nn.conv2d(features["x"], weights["kernel"], 1, "SAME")
        # A fused batch norm would correct the variance by the number of rows, which differs per replica.
        net = normalization.batch_normalization(net, momentum=0.9, training=True, name="norm", fused=False)
        net = tf.reduce_mean(tf.nn.relu(net), [1, 2])
        loss = v1.losses.sparse_softmax_cross_entropy(labels, net @ weights["dense"])
        rate = v1.train.polynomial_decay(0.05, steps, STEPS, 0.001, power=2.0)
        wrapped = CrossShardOptimizer(optimizer(rate))
        updates = v1.get_collection(v1.GraphKeys.UPDATE_OPS, scope=v1.get_variable_scope().name)
        return loss, tf.group(wrapped.minimize(loss, steps, own_variables()), *updates)

    return program


MODEL = side_by_side({name: convolution(optimizer) for name, optimizer in OPTIMIZERS.items()})


def estimator_of(folder: Path, replicas: int, **config: Any) -> Any:
    settings = {"tpu_config": {"num_replicas": replicas}, "save_summary_steps": 1, "iterations": 20, **config}
    return make_estimator(folder, MODEL, ROWS, **settings)


def assert_equal(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert sorted(found) == sorted(expected)
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, RELATIVE, ABSOLUTE, err_msg=name)


def hosts_input_fn(params: dict[str, Any]) -> Any:
    """The rows of one of several processes."""
    context, size = params["context"], params["batch_size"]
    begin = context.current_host * size
    rows = slice(begin, begin + size)
    whole = input_fn({**params, "batch_size": size * context.num_hosts})
    return whole.map(lambda features, labels: ({"x": features["x"][rows]}, labels[rows]))


PROCESS = """
import sys
from pathlib import Path
from tests.estimator.steps import test_equality as equality
folder, address, number, done = sys.argv[1:]
config = {"coordinator_address": address, "num_processes": 2, "process_id": int(number)}
estimator = equality.estimator_of(
    Path(folder), 2, save_checkpoints_steps=equality.HALF, keep_checkpoint_max=0, **config
)
estimator.train(equality.after(int(done), equality.hosts_input_fn), max_steps=equality.STEPS)
"""


def after(steps: int, input_fn: Callable[..., Any]) -> Callable[..., Any]:
    """Return an input_fn whose data begins after some steps."""
    return lambda params: input_fn({**params, "skip": steps * ROWS})


def train_in_two_processes(folder: Path, done: int = 0) -> None:
    """Train on two devices in each of two processes; `done` steps were done before."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    words = [("-c", PROCESS, str(folder), address, str(number), str(done)) for number in range(2)]
    with Forked(*words[0]) as first, Forked(*words[1]) as second:
        for process in (first, second):
            assert process.wait() == 0, process.stderr


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Function from a number of replicas, and of processes, to the folder of a training, with a checkpoint after half of it."""

    @functools.cache
    def folder_of(replicas: int, processes: int = 1) -> Path:
        folder = tmp_path_factory.mktemp(str(replicas))
        if processes == 2:
            train_in_two_processes(folder)
            return folder
        estimator = estimator_of(folder, replicas, save_checkpoints_steps=HALF, keep_checkpoint_max=0)
        estimator.train(input_fn, max_steps=STEPS)
        return folder

    return folder_of


pytestmark = pytest.mark.filterwarnings("ignore:.*batch_normalization` is deprecated")


def variables_of(folder: Path) -> dict[str, Any]:
    return programs.variables(estimator_of(folder, 1))


@pytest.mark.cases(2)
@pytest.mark.parametrize("replicas", [1, 2, 4, 8])
def test_devices_train_as_plain_tensorflow(
    replicas: int, folder_of: Callable[[int], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = folder_of(1)
    if replicas == 1:  # One CPU device, which only a test uses.
        monkeypatch.setattr(tpu_estimator, "make_local_topology", lambda _: Topology(1, find_local_devices(1)))
        estimator_of(tmp_path, 1).train(input_fn, max_steps=STEPS)
    found, expected = tmp_path if replicas == 1 else folder_of(replicas), variables_of(one)
    assert_equal(variables_of(found), expected)
    np.testing.assert_allclose(programs.losses(found), programs.losses(one), RELATIVE, ABSOLUTE)
    for name in OPTIMIZERS:
        assert expected[f"{name}/steps"] == STEPS
        assert np.abs(expected[f"{name}/norm/moving_mean"]).max() > 1e-3


def test_two_processes_of_two_devices_train_as_plain_tensorflow(folder_of: Callable[..., Path]) -> None:
    one, found = folder_of(1), folder_of(4, 2)
    assert_equal(variables_of(found), variables_of(one))
    np.testing.assert_allclose(programs.losses(found), programs.losses(one), RELATIVE, ABSOLUTE)


FROM_OTHERS = [((1,), (4,)), ((4,), (1,)), ((4, 2), (1,)), ((1,), (4, 2)), ((4,), (4, 2))]


@pytest.mark.cases(1)
@pytest.mark.parametrize(("first", "second"), FROM_OTHERS)
def test_training_continues_from_a_checkpoint_of_other_devices(
    first: tuple[int, ...], second: tuple[int, ...], folder_of: Callable[..., Path], tmp_path: Path
) -> None:
    for path in folder_of(*first).glob(f"model.ckpt-{HALF}.*"):
        shutil.copy(path, tmp_path)
    v1.train.update_checkpoint_state(str(tmp_path), str(tmp_path / f"model.ckpt-{HALF}"))
    if second == (4, 2):
        train_in_two_processes(tmp_path, HALF)
    else:
        estimator_of(tmp_path, *second).train(after(HALF, input_fn), max_steps=STEPS)
    assert_equal(variables_of(tmp_path), variables_of(folder_of(1)))

"""Functions of TensorFlow on several CPU devices in place of chips, compared with numpy on the whole batch."""

import functools
import socket
from collections.abc import Callable, Iterator
from typing import Any

import keras  # type: ignore[import-untyped]
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import tpudata
from tests.helpers.forked import Forked
from tpudata.estimator import CrossShardOptimizer, ModelFnError, TPUSystem

RNG = np.random.default_rng(0)
ROWS = RNG.normal(size=(8, 3)).astype(np.float32)
TARGETS = ROWS @ np.array([1, 2, 3], np.float32)
RATE = 0.1


@pytest.fixture(name="system")
def four_devices() -> Iterator[TPUSystem]:
    with tpudata.tpu_system(num_replicas=4) as system:
        yield system


def weights() -> Any:
    return tf.Variable(np.zeros(3, np.float32))


def by_numpy(steps: int) -> np.ndarray:
    """Return the weights after steps of gradient descent on all rows."""
    found = np.zeros(3, np.float32)
    for _ in range(steps):
        found -= RATE * 2 * ROWS.T @ (ROWS @ found - TARGETS) / len(ROWS)
    return found


def gradient_of(w: Any, rows: Any, targets: Any) -> tuple[Any, Any]:
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum((tf.linalg.matvec(rows, w) - targets) ** 2) / len(ROWS)
    return tape.gradient(loss, w), loss


def test_lists_its_devices(system: TPUSystem) -> None:
    assert system.num_replicas == len(system.devices) == len(system.local_devices) == 4
    assert (system.host, system.num_hosts) == (0, 1)


@pytest.mark.parametrize("reduced_by", ["all_reduce", "cross_replica_sum"])
def test_gradients_are_summed_over_devices(system: TPUSystem, reduced_by: str) -> None:
    w, steps = weights(), tf.Variable(0, dtype=tf.int64)

    def step(rows: Any, targets: Any) -> Any:
        gradient, loss = gradient_of(w, rows, targets)
        if reduced_by == "all_reduce":
            gradient = tf.distribute.get_replica_context().all_reduce("SUM", gradient)
        else:
            gradient = tf.compat.v1.tpu.cross_replica_sum(gradient)
        w.assign_sub(RATE * gradient)
        steps.assign_add(1)
        return loss

    losses = [system.run(step, ROWS, TARGETS) for _ in range(5)]
    assert [loss.shape for loss in losses] == [(4,)] * 5
    np.testing.assert_allclose(losses[0], (TARGETS**2).reshape(4, 2).sum(1) / 8, rtol=1e-5)
    system.sync()
    np.testing.assert_allclose(w.numpy(), by_numpy(5), rtol=1e-5)
    assert steps.numpy() == 5


def test_a_v1_optimizer_updates_like_one_device(system: TPUSystem) -> None:
    w = weights()
    optimizer = CrossShardOptimizer(tf.compat.v1.train.GradientDescentOptimizer(RATE))

    def step(rows: Any, targets: Any) -> None:
        loss = tf.reduce_mean((tf.linalg.matvec(rows, w) - targets) ** 2)
        optimizer.minimize(loss, var_list=[w])

    for _ in range(5):
        assert system.run(step, ROWS, TARGETS) is None
    system.sync()
    np.testing.assert_allclose(w.numpy(), by_numpy(5), rtol=1e-5)


@pytest.mark.parametrize("module", [keras, tf_keras], ids=["keras", "tf_keras"])
def test_a_keras_optimizer_updates_like_one_device(system: TPUSystem, module: Any) -> None:
    w = weights()
    optimizer = module.optimizers.SGD(RATE)
    optimizer.build([w])

    def step(rows: Any, targets: Any) -> None:
        gradient, _ = gradient_of(w, rows, targets)
        optimizer.apply_gradients([(gradient, w)])  # Keras sums over the devices.

    for _ in range(3):
        system.run(step, ROWS, TARGETS)
    system.sync()
    np.testing.assert_allclose(w.numpy(), by_numpy(3), 1e-4, 1e-6)


def test_sync_copies_variables_from_the_devices(system: TPUSystem) -> None:
    v = tf.Variable(1.0)

    def double() -> Any:
        return v.assign(2 * v)

    system.run(double)
    assert v.numpy() == 1
    system.sync()
    assert v.numpy() == 2
    v.assign(5.0)
    np.testing.assert_array_equal(system.run(double), [10] * 4)


def test_leaving_the_block_syncs_variables() -> None:
    v = tf.Variable(1.0)
    with tpudata.tpu_system(num_replicas=2) as system:
        system.run(lambda: v.assign_add(2.0))
    assert v.numpy() == 3


def test_an_error_in_the_block_syncs_variables() -> None:
    v = tf.Variable(1.0)

    def fail() -> None:
        with tpudata.tpu_system(num_replicas=2) as system:
            system.run(lambda: v.assign_add(2.0))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert v.numpy() == 3


def test_calls_on_one_device_share_variables_with_all(system: TPUSystem) -> None:
    v = tf.Variable([1.0, 2.0])
    system.run(lambda: v.assign_add([1.0, 1.0]))
    np.testing.assert_array_equal(
        system.run(lambda rows: rows + v, np.zeros((3, 2), np.float32), device=2), [[2, 3]] * 3
    )
    system.run(lambda: v.assign(v * 10), device=1)
    np.testing.assert_array_equal(system.run(lambda: v.read_value()), [[20, 30]] * 4)


def test_variables_take_the_first_devices_value(system: TPUSystem) -> None:
    v, flag = tf.Variable(0.0), tf.Variable(False)

    def assign(rows: Any) -> None:
        v.assign(rows[0])
        flag.assign(rows[0] > 6)

    system.run(assign, np.array([7, 5, 3, 1], np.float32))
    np.testing.assert_array_equal(system.run(lambda: v.read_value()), [7] * 4)
    system.sync()
    assert bool(flag.numpy())


def test_results_keep_the_functions_structure(system: TPUSystem) -> None:
    found = system.run(
        lambda pair, scale: {"sum": tf.reduce_sum(pair["a"]) * scale, "none": None, "same": (scale,)},
        {"a": ROWS},
        2.0,
        split=[True, False],
    )
    np.testing.assert_allclose(found["sum"], 2 * ROWS.reshape(4, -1).sum(1), rtol=1e-5)
    assert found["none"] is None
    np.testing.assert_array_equal(found["same"][0], [2] * 4)


def test_collectives_work_in_python_branches_and_loops(system: TPUSystem) -> None:
    def total(rows: Any) -> Any:
        result = tf.zeros([])
        for _ in tf.range(3):
            if tf.reduce_sum(result) < 100:
                result += tf.compat.v1.tpu.cross_replica_sum(tf.reduce_sum(rows))
        return result

    rows = np.arange(8, dtype=np.float32)
    for function in (total, tf.function(total)):
        np.testing.assert_allclose(system.run(function, rows), [84] * 4)


def test_int64_values_are_kept(system: TPUSystem) -> None:
    big = 2**40 + np.arange(4)
    found = system.run(lambda values: tf.distribute.get_replica_context().all_reduce("SUM", values[0]), big)
    assert found.dtype == np.int64
    assert found.tolist() == [big.sum()] * 4


def test_draws_differ_between_devices_and_calls(system: TPUSystem) -> None:
    def draw() -> Any:
        return tf.random.uniform([2], seed=3)

    drawn = np.concatenate([system.run(draw), system.run(draw)])
    assert len(np.unique(drawn)) == 16
    with tpudata.tpu_system(num_replicas=4) as again:
        np.testing.assert_array_equal(again.run(draw), drawn[:4])


SEEDED: dict[str, Callable[[], Any]] = {
    "a layer of keras": lambda: keras.layers.Dropout(0.5, seed=3),
    "a layer of tf_keras": lambda: tf_keras.layers.Dropout(0.5, seed=3),
    "keras.random": lambda: seeded_noise(keras.random.SeedGenerator(3)),
    "keras.random without a seed": lambda: seeded_noise(None),
    "a generator": lambda: generator_noise(tf.random.Generator.from_seed(3)),
}


def seeded_noise(seed: Any) -> Callable[..., Any]:
    return lambda rows, **_: rows + keras.random.uniform(rows.shape, seed=seed)


def generator_noise(generator: Any) -> Callable[..., Any]:
    return lambda rows, **_: rows + generator.uniform(rows.shape)


@pytest.mark.parametrize("kind", SEEDED)
def test_layers_and_generators_draw_differently_per_device_and_call(system: TPUSystem, kind: str) -> None:
    layer = SEEDED[kind]()

    def draw(rows: Any) -> Any:
        return layer(rows, training=True)

    drawn = np.concatenate([system.run(draw, np.ones((4, 40), np.float32)) for _ in range(2)])
    assert len({rows.tobytes() for rows in drawn}) == 8


def test_calls_advance_a_seed_generator(system: TPUSystem) -> None:
    seed = keras.random.SeedGenerator(3)
    for _ in range(2):
        system.run(lambda: keras.random.uniform([8], seed=seed))
    system.sync()
    assert np.asarray(seed.state).tolist() == [3, 2]


@pytest.mark.matrix
def test_a_caller_can_overwrite_whole_arguments_after_a_call() -> None:
    """The function returns nothing, so the call does not wait for it."""
    total = tf.Variable(0.0)
    # At a multiple of 64 bytes, where the device can take the array as it is.
    memory = np.zeros(1 << 16, np.float32)
    rows = memory[-memory.ctypes.data % 64 // 4 :][: 1 << 15]

    def add(matrix: Any, rows: Any) -> None:
        for _ in range(30):
            matrix = tf.tanh(matrix @ matrix)
        total.assign(tf.reduce_sum(rows) + 0 * tf.reduce_sum(matrix))

    with tpudata.tpu_system(num_replicas=1) as system:
        for _ in range(3):  # The first call compiles.
            rows[:] = 1
            system.run(add, np.eye(600, dtype=np.float32), rows, split=False)
            rows[:] = 0
            system.sync()
            assert float(total) == len(rows)


def test_a_variable_made_in_a_call_takes_the_first_devices_value(system: TPUSystem) -> None:
    made: list[Any] = []

    def step(rows: Any) -> None:
        if not made:
            made.append(tf.Variable(1.0, aggregation=tf.VariableAggregation.SUM))
        made[0].assign_add(rows[0])

    system.run(step, np.arange(4, dtype=np.float32) + 2)
    system.sync()
    assert float(made[0]) == 3


def test_keras_layers_run_on_devices(system: TPUSystem) -> None:
    layer = tf.keras.layers.Dense(2)
    layer.build((None, 3))
    found = system.run(layer, ROWS)
    np.testing.assert_allclose(
        found.reshape(8, 2), ROWS @ layer.kernel.numpy() + layer.bias.numpy(), rtol=1e-4, atol=1e-6
    )


def test_traces_a_function_once_per_shape(system: TPUSystem) -> None:
    shapes = []

    def function(rows: Any) -> Any:
        shapes.append(rows.shape.as_list())
        return rows

    for size in (4, 4, 8, 4):
        system.run(function, np.zeros(size, np.float32))
    assert shapes == [[1], [2]]


@pytest.mark.parametrize(
    ("args", "options", "message"),
    [
        (
            (np.zeros(6),),
            {},
            r"argument 0 .* 4 devices \(got 6 rows, expected a multiple of 4 rows\). Pass split=False",
        ),
        ((np.zeros(8), 1.0), {}, r"argument 1 .* \(got a scalar"),
        ((["a", "b"],), {"split": False}, "argument 0 .* has strings"),
        ((np.zeros(8),), {"split": [True, False]}, r"got 2, expected 1"),
        ((np.zeros(8),), {"device": 4}, "got 4, expected 0 to 3"),
    ],
)
def test_rejects_wrong_calls(system: TPUSystem, args: Any, options: Any, message: str) -> None:
    with pytest.raises(tpudata.UsageError, match=message):
        system.run(lambda *values: values, *args, **options)


def in_a_map(rows: Any) -> Any:
    return tf.data.Dataset.range(2).map(lambda _: tf.random.normal([])).reduce(rows, lambda total, item: total + item)


REJECTED: dict[str, tuple[Callable[[Any], Any], str]] = {
    "an operation": (lambda rows: tf.strings.length(tf.strings.as_string(rows)), "got AsString, .*on the host"),
    "a draw": (lambda rows: tf.random.gamma([2], 1.0) + rows[0, 0], "'random_gamma/.*got RandomGamma, .*on the host"),
    "a draw of classes": (
        lambda _: tf.random.uniform_candidate_sampler(np.zeros([1, 1], np.int64), 1, 1, True, 3).sampled_candidates,
        "got UniformCandidateSampler, .*on the host",
    ),
    "a draw in a dataset": (in_a_map, ""),
    "a shape": (lambda rows: tf.boolean_mask(rows, rows[:, 0] > 0), "depends on values"),
    "a shape inside": (lambda rows: tf.reduce_sum(tf.boolean_mask(rows, rows[:, 0] > 0)), "depends on values"),
    "a mean of truths": (lambda rows: context().all_reduce("MEAN", rows > 0), "a sum over replicas needs numbers"),
    "groups": (lambda rows: tf.compat.v1.tpu.cross_replica_sum(rows, [[0, 1], [2, 2]]), "must have each replica once"),
    "groups of doubles": (
        lambda rows: tf.compat.v1.tpu.cross_replica_sum(tf.cast(rows, tf.float64), [[0, 1], [2, 3]]),
        "a sum of float64 is over all replicas",
    ),
    "other replicas": (lambda rows: tf.distribute.get_strategy().run(lambda: rows), "cannot start others"),
    "a loop that grows": (
        lambda rows: tf.while_loop(
            lambda x: x[0, 0] < 9, lambda x: [tf.concat([x, x], 0)], [rows], [tf.TensorShape([None, 3])]
        )[0],
        "depends on values",
    ),
    "python": (lambda rows: tf.py_function(lambda x: x, [rows], tf.float32), "got EagerPyFunc, .*on the host"),
    "text": (lambda _: "text", "has strings"),
    "a variable of each call": (lambda rows: tf.Variable(1.0) + rows, "makes a variable at each call"),
    "a sum over a computed length": (
        lambda rows: tf.reduce_sum(tf.range(tf.cast(rows[0, 0], tf.int32))),
        "XLA cannot compile it",
    ),
}


def context() -> Any:
    return tf.distribute.get_replica_context()


class Step:
    def __call__(self, rows: Any, shape: int = 2) -> Any:
        return tf.random.gamma([shape], 1.0) + rows[0, 0]


@pytest.mark.parametrize("function", [Step(), functools.partial(Step(), shape=3)], ids=["object", "partial"])
def test_errors_name_an_unnamed_function_by_its_type(system: TPUSystem, function: Any) -> None:
    with pytest.raises(ModelFnError, match=r"^tpu_system: Step: "):
        system.run(function, ROWS)


@pytest.mark.parametrize("what", REJECTED)
def test_errors_name_the_function_in_one_line(system: TPUSystem, what: str) -> None:
    function, message = REJECTED[what]

    def step(rows: Any) -> Any:
        return function(rows)

    with pytest.raises(ModelFnError, match=f"^tpu_system: step: .*{message}") as caught:
        system.run(step, ROWS)
    assert "model_fn" not in str(caught.value)
    assert "input_fn" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_rejects_lookup_tables(system: TPUSystem) -> None:
    table = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer([1], [2]), 0)
    with pytest.raises(tpudata.UsageError, match="uses a table"):
        system.run(table.lookup, np.zeros(4, np.int32))


def test_rejects_calls_after_the_block() -> None:
    with tpudata.tpu_system(num_replicas=2) as system:
        pass
    with pytest.raises(tpudata.UsageError, match="after the block ended"):
        system.run(lambda: 1.0)


def test_rejects_names_of_other_machines() -> None:
    message = r"^tpu_system\(name=...\): programs run on the machine of their TPU .* tpu-vm ssh my-tpu --worker=all"
    with pytest.raises(tpudata.TpudataError, match=message), tpudata.tpu_system("my-tpu"):
        pass


def test_rejects_processes_that_are_not_fully_described() -> None:
    message = r"^tpu_system\(process_id=...\): got None \(expected a whole number from 0\)"
    with pytest.raises(tpudata.UsageError, match=message), tpudata.tpu_system(num_replicas=1, num_processes=2):
        pass


TWO_PROCESSES = """
import sys
import numpy as np
import tensorflow as tf
import tpudata

address, process = sys.argv[1], int(sys.argv[2])
w = tf.Variable(tf.zeros([3]))
rows = np.arange(24, dtype=np.float32).reshape(8, 3)


def step(rows):
    w.assign_add(tf.distribute.get_replica_context().all_reduce("SUM", tf.reduce_sum(rows, 0)))
    return tf.reduce_sum(rows)


processes = {"coordinator_address": address, "num_processes": 2, "process_id": process}
with tpudata.tpu_system(num_replicas=2, **processes) as system:
    assert (system.num_replicas, system.num_hosts, system.host) == (4, 2, process)
    assert len(system.local_devices) == 2
    own = rows[4 * process : 4 * process + 4]
    sums = system.run(step, own)
    assert sums.tolist() == [own[:2].sum(), own[2:].sum()]
    assert system.run(lambda: w + 0.0, device=1).tolist() == rows.sum(0).tolist()
    try:
        system.run(lambda: w.assign_add(tf.ones([3])), device=0)
    except tpudata.UsageError as error:
        assert "would differ between processes" in str(error)
assert w.numpy().tolist() == rows.sum(0).tolist()
print("done")
"""


def test_two_processes_form_one_system() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
    with Forked("-c", TWO_PROCESSES, address, "0") as first, Forked("-c", TWO_PROCESSES, address, "1") as second:
        codes = [first.wait(), second.wait()]
        assert codes == [0, 0], first.stderr + second.stderr
        # The exchange between processes prints lines before.
        assert [one.stdout.splitlines()[-1] for one in (first, second)] == ["done", "done"]

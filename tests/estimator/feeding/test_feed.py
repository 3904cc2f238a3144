"""Rows of replicas: each row goes to one replica once, in order."""

import collections
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.estimator import programs
from tests.estimator.programs import X, Y, finite_input_fn, make_estimator, make_model_fn, train_input_fn
from tpudata.devices.batches.feeder import StackFeed
from tpudata.devices.processes.peers import Peers
from tpudata.devices.processes.topology import Topology
from tpudata.devices.spmd.mesh import make_mesh
from tpudata.estimator import InputPipelineConfig, ModeKeys, TPUEstimatorSpec
from tpudata.estimator.config.tpu_config import TPUConfig
from tpudata.estimator.feeding.deployment import Call, Deployment
from tpudata.estimator.feeding.replica_elements import ReplicaElements, choose_short_data
from tpudata.estimator.feeding.signature import check_for_devices

Mode = InputPipelineConfig


class Board:
    """The messages between several hosts, which are threads here."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._numbers: list[Sequence[int]] = [()] * count
        self._barrier = threading.Barrier(count, timeout=60)

    def exchange(self, index: int, numbers: Sequence[int]) -> list[Sequence[int]]:
        self._numbers[index] = numbers
        self._barrier.wait()
        found = list(self._numbers)
        self._barrier.wait()
        return found


class Host(Peers):
    """One of the hosts of a board."""

    def __init__(self, index: int, board: Board) -> None:
        self.index = index
        self.count = board.count
        self._board = board

    def sum_numbers(self, numbers: Sequence[int]) -> list[int]:
        return [sum(column) for column in zip(*self._board.exchange(self.index, numbers), strict=True)]

    def min_numbers(self, numbers: Sequence[int]) -> list[int]:
        return [min(column) for column in zip(*self._board.exchange(self.index, numbers), strict=True)]


def fed(mode: str, pipeline: Mode, hosts: int, batch: int, rows: int, axis: Any = None) -> list[list[list[int]]]:
    """Return the rows of each replica, by step, of numbered rows that each call of input_fn takes its share of."""
    board = Board(hosts)
    with ThreadPoolExecutor(hosts) as pool:
        steps_of_hosts = pool.map(
            lambda host: fed_to(Host(host, board), mode, pipeline, batch, rows, axis), range(hosts)
        )
        return [[replica for part in step for replica in part] for step in zip(*steps_of_hosts, strict=True)]


def fed_to(host: Host, mode: str, pipeline: Mode, batch: int, rows: int, axis: Any) -> list[list[list[int]]]:
    """Return the rows of each replica of a host, by step."""
    deployment = Deployment(
        mode, Topology(4, peers=host), TPUConfig(num_shards=4, per_host_input_for_training=pipeline), batch
    )

    def input_fn(call: Call) -> Any:
        numbers = np.arange(rows)[np.arange(rows) % call.total == call.index] + 1
        dataset = tf.data.Dataset.from_tensor_slices({"x": numbers, "weights": np.ones(len(numbers), np.float32)})
        return dataset.batch(deployment.batch_size, drop_remainder=mode != ModeKeys.PREDICT)

    dataset = ReplicaElements(input_fn, deployment, axis).make_worker_dataset(host.count, host.index)
    local = 4 // host.count
    rule = choose_short_data(mode, dataset.element_spec)
    mesh = make_mesh(jax.devices()[:local])
    iteration = StackFeed(dataset, mesh, local, 1, is_endless=False, peers=host, short_data=rule).iterate()
    steps = []
    for element in iter(iteration.next, None):
        features, masks = element if mode == ModeKeys.PREDICT else (element, element["weights"])
        parts = zip(np.asarray(features["x"])[0], np.asarray(masks)[0], strict=True)
        steps.append([x[mask > 0].tolist() for x, mask in parts])
    iteration.close()
    return steps


@settings(max_examples=5, deadline=None)
@given(
    mode=st.sampled_from([ModeKeys.TRAIN, ModeKeys.EVAL, ModeKeys.PREDICT]),
    pipeline=st.sampled_from([Mode.PER_SHARD_V1, Mode.PER_HOST_V1, Mode.PER_HOST_V2]),
    hosts=st.sampled_from([1, 2, 4]),
    batches=st.integers(1, 3),
    rows=st.integers(0, 60),
)
def test_feeds_no_row_twice_and_drops_only_remainders(
    mode: str, pipeline: Mode, hosts: int, batches: int, rows: int
) -> None:
    batch = 4 * batches
    steps = fed(mode, pipeline, hosts, batch, rows)
    found = [row for step in steps for replica in step for row in replica]
    assert len(set(found)) == len(found)
    if mode == ModeKeys.PREDICT:
        assert sorted(found) == list(range(1, rows + 1))
        if hosts == 1:
            assert found == sorted(found)
        return
    assert all(len(replica) in (0, batches) for step in steps for replica in step)
    if mode == ModeKeys.TRAIN:
        assert all(len(replica) == batches for step in steps for replica in step)
        assert pipeline is Mode.PER_SHARD_V1 or len(found) > rows - 2 * batch
    else:  # Only rows that the dataset itself dropped are missing: less than a batch per call.
        assert len(found) > rows - 2 * batch


def test_assigns_rows_to_replicas_by_mode() -> None:
    whole = [[[1, 2], [3, 4], [5, 6], [7, 8]], [[9, 10], [11, 12], [13, 14], [15, 16]]]
    assert fed(ModeKeys.TRAIN, Mode.PER_HOST_V1, 1, 8, 20) == whole
    assert fed(ModeKeys.TRAIN, Mode.PER_HOST_V2, 1, 8, 20) == whole
    # Host 0 reads the odd numbers, host 1 the even ones.
    by_host = [[[1, 3], [5, 7], [2, 4], [6, 8]], [[9, 11], [13, 15], [10, 12], [14, 16]]]
    assert fed(ModeKeys.TRAIN, Mode.PER_HOST_V1, 2, 8, 20) == by_host
    assert fed(ModeKeys.TRAIN, Mode.PER_HOST_V2, 2, 8, 20) == by_host
    by_core = [[[1, 5], [2, 6], [3, 7], [4, 8]], [[9, 13], [10, 14], [11, 15], [12, 16]]]
    assert fed(ModeKeys.TRAIN, Mode.PER_SHARD_V1, 2, 8, 20) == by_core
    assert fed(ModeKeys.TRAIN, Mode.BROADCAST, 2, 8, 20)[1] == [list(range(9, 17))] * 4
    assert fed(ModeKeys.EVAL, Mode.SLICED, 2, 8, 20) == whole
    # The remainder: two batches of two rows, and nothing for the last two replicas.
    assert fed(ModeKeys.EVAL, Mode.PER_HOST_V2, 1, 8, 20) == [*whole, [[17, 18], [19, 20], [], []]]
    assert fed(ModeKeys.PREDICT, Mode.PER_HOST_V2, 1, 8, 19) == [*whole, [[17, 18], [19], [], []]]


@pytest.fixture(scope="module")
def on_one_device(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The variables after 4 steps."""
    estimator = make_estimator(tmp_path_factory.mktemp("one"), batch_size=16)
    return programs.variables(estimator.train(train_input_fn, max_steps=4))


@pytest.mark.parametrize("pipeline", [Mode.PER_SHARD_V1, Mode.PER_HOST_V1, Mode.PER_HOST_V2])
def test_training_in_every_mode_equals_training_on_the_global_batch(
    pipeline: Mode, on_one_device: dict[str, Any], tmp_path: Path
) -> None:
    def input_fn(params: dict[str, Any]) -> Any:
        """This call's part of each global batch of 16 rows."""
        _, index, calls, _ = params["context"].current_input_fn_deployment()
        share = 16 // calls
        batches = train_input_fn({"batch_size": 16}).map(
            lambda f, y: ({"x": f["x"][index * share : (index + 1) * share]}, y[index * share : (index + 1) * share])
        )
        return batches.unbatch().batch(params["batch_size"], drop_remainder=True)

    tpu_config = {"num_replicas": 4, "per_host_input_for_training": pipeline}
    several = make_estimator(tmp_path, batch_size=16, tpu_config=tpu_config).train(input_fn, max_steps=4)
    for name, value in on_one_device.items():
        np.testing.assert_allclose(several.get_variable_value(name), value, rtol=1e-4, atol=1e-6, err_msg=name)


def test_training_ends_after_the_last_whole_step_of_data(tmp_path: Path) -> None:
    for mode in (Mode.PER_HOST_V1, Mode.PER_HOST_V2):
        tpu_config = {"num_replicas": 4, "per_host_input_for_training": mode}
        estimator = make_estimator(tmp_path / mode.name, iterations=3, tpu_config=tpu_config)
        estimator.train(lambda params: train_input_fn(params).take(37 // params["batch_size"]), steps=100)
        assert estimator.get_variable_value("global_step") == 4


def test_make_input_fn_feeds_the_replicas(digits_dataset: Path, tmp_path: Path) -> None:
    import tpudata

    def rows(labels: Any, weights: Any) -> dict[str, Any]:
        return {"sum": programs.v1.metrics.mean(tf.cast(labels, tf.float32), weights)}

    def model_fn(features: Any, labels: Any, mode: str) -> TPUEstimatorSpec:
        if mode == ModeKeys.PREDICT:
            return TPUEstimatorSpec(mode, predictions={"pixels": tf.reduce_sum(features["image"], [1, 2, 3])})
        labels = labels if not isinstance(labels, dict) else labels["label"]
        weighted = tf.cast(labels, tf.float32) * features["weights"]
        loss = tf.math.divide_no_nan(tf.reduce_sum(weighted), tf.reduce_sum(features["weights"]))
        return TPUEstimatorSpec(mode, loss=loss, eval_metrics=(rows, [labels, features["weights"]]))

    input_fn = tpudata.make_input_fn(digits_dataset, "validation", training=False)
    one = make_estimator(tmp_path, model_fn, batch_size=32)
    expected = one.evaluate(input_fn)
    predicted = [row["pixels"] for row in one.predict(input_fn)]
    first, second = (
        make_estimator(tmp_path, model_fn, 32, tpu_config={"num_replicas": 4, "per_host_input_for_training": mode})
        for mode in (Mode.PER_HOST_V1, Mode.PER_HOST_V2)
    )
    assert second.evaluate(input_fn) == pytest.approx(expected, rel=1e-5)
    np.testing.assert_allclose([row["pixels"] for row in first.predict(input_fn)], predicted, rtol=1e-6)
    assert len(predicted) == 90


def unknown_columns(params: dict[str, Any]) -> Any:
    def forget(features: Any, labels: Any) -> Any:
        x = tf.ensure_shape(tf.numpy_function(lambda x: x, [features["x"]], tf.float32), [params["batch_size"], None])
        return {"x": x}, labels

    return train_input_fn(params).map(forget)


def other_size(params: dict[str, Any]) -> Any:
    return train_input_fn({"batch_size": 16})


@pytest.mark.parametrize(
    ("input_fn", "message"),
    [
        (finite_input_fn(37), r"features\['x'\] has the shape \(None, 3\).*static.*drop_remainder=True.*make_input_fn"),
        (unknown_columns, r"features\['x'\] has the shape \(8, None\).*set_shape"),
        (other_size, r"features\['x'\] has the shape \(16, 3\).*params\['batch_size'\]=8"),
    ],
)
@pytest.mark.parametrize("what", ["train", "evaluate"])
def test_rejects_shapes_that_replicas_cannot_take(
    what: str, input_fn: Callable[..., Any], message: str, tmp_path: Path
) -> None:
    estimator = make_estimator(tmp_path, tpu_config={"num_replicas": 2})
    with pytest.raises(ValueError, match=message):
        getattr(estimator, what)(input_fn, steps=1)


def tensors(params: dict[str, Any]) -> Any:
    return tf.constant(X), tf.constant(Y)


def test_per_host_v2_accepts_only_datasets(tmp_path: Path) -> None:
    tpu_config = {"num_replicas": 2, "per_host_input_for_training": Mode.PER_HOST_V2}
    with pytest.raises(TypeError, match=r"tf\.data\.Dataset"):
        make_estimator(tmp_path, tpu_config=tpu_config).train(tensors, steps=1)


def test_rejects_an_evaluation_whose_last_step_lacks_batches(tmp_path: Path) -> None:
    tpu_config = {"num_replicas": 4, "per_host_input_for_training": Mode.PER_HOST_V2}
    estimator = make_estimator(tmp_path, tpu_config=tpu_config)
    with pytest.raises(tf.errors.InvalidArgumentError, match="ends within a step"):
        estimator.evaluate(lambda params: train_input_fn(params).take(5))


def columns(params: dict[str, Any], rows: int = 40) -> Any:
    """Examples along the last axis, as images of shape [height, width, channels, rows]."""
    return finite_input_fn(rows)(params).map(lambda f, y: ({"x": tf.transpose(f["x"])}, y))


@pytest.mark.parametrize("shards", [pytest.param(1, marks=pytest.mark.matrix), 4])
def test_batch_axis_1_equals_rows_in_axis_0(shards: int, tmp_path: Path) -> None:
    from tpudata.estimator import RunConfig, TPUEstimator

    def model_fn(features: Any, labels: Any, mode: str) -> TPUEstimatorSpec:
        assert features["x"].shape == (3, 8 // shards)
        return make_model_fn()({"x": tf.transpose(features["x"])}, labels, mode, {})

    def input_fn(params: dict[str, Any]) -> Any:
        batches = columns(params)
        return batches.map(lambda f, y: ({"x": tf.ensure_shape(f["x"], [3, 8])}, tf.ensure_shape(y, [8])))

    estimator = TPUEstimator(
        model_fn,
        model_dir=str(tmp_path / "columns"),
        config=RunConfig(TPUConfig(num_replicas=shards)),
        use_tpu=False,
        train_batch_size=8,
        eval_batch_size=8,
        predict_batch_size=8,
        batch_axis=(1, 0),
    )
    rows = make_estimator(tmp_path / "rows")
    estimator.train(input_fn)
    rows.train(finite_input_fn(40))
    for name, value in programs.variables(rows).items():
        np.testing.assert_allclose(estimator.get_variable_value(name), value, rtol=1e-4, atol=1e-6)
    assert estimator.evaluate(input_fn) == pytest.approx(rows.evaluate(finite_input_fn(40)), rel=1e-4)
    found = [row["inputs"] for row in estimator.predict(lambda params: columns(params, 19))]
    np.testing.assert_array_equal(found, X[:19])


@pytest.mark.parametrize(("batch_axis", "message"), [((1,), r"got 1, expected 2"), ((2, 0), "no axis 2")])
def test_rejects_a_batch_axis_that_does_not_fit(batch_axis: Any, message: str, tmp_path: Path) -> None:
    from tpudata.estimator import TPUEstimator

    estimator = TPUEstimator(make_model_fn(), model_dir=str(tmp_path), use_tpu=False, batch_axis=batch_axis)
    with pytest.raises(ValueError, match=message):
        estimator.train(lambda params: finite_input_fn(8)({**params, "batch_size": 8}))


Pair = collections.namedtuple("Pair", ["left", "right"])


STRUCTURES: list[tuple[Callable[..., Any], Callable[..., Any]]] = [
    (
        lambda x, y: ({"x": x, "deep": {"pair": Pair(y, (y, x))}}, {"y": y}),
        lambda f, labels: (f["deep"]["pair"].right[1], labels["y"]),
    ),
    (lambda x, y: (Pair(x, y), y), lambda f, labels: (f.left, labels)),
    (lambda x, y: Pair(x, y), lambda f, _: (f.left, f.right)),
    (lambda x, y: {"x": x, "y": y}, lambda f, _: (f["x"], f["y"])),
]


# Each structure in one mode.
@pytest.mark.cases(2)
@pytest.mark.parametrize(
    ("structure", "mode"),
    list(enumerate([Mode.PER_SHARD_V1, Mode.PER_HOST_V2, Mode.BROADCAST, Mode.PER_HOST_V1])),
)
def test_nested_input_trains_evaluates_and_predicts(mode: Mode, structure: int, tmp_path: Path) -> None:
    pack, unpack = STRUCTURES[structure]

    def input_fn(params: dict[str, Any]) -> Any:
        return tf.data.Dataset.from_tensor_slices((X, Y)).map(pack).batch(params["batch_size"], drop_remainder=True)

    def model_fn(features: Any, labels: Any, mode: str) -> TPUEstimatorSpec:
        if mode == ModeKeys.PREDICT:
            return TPUEstimatorSpec(mode, predictions={"rows": tf.nest.flatten(features)[-1]})
        return make_model_fn()(*unpack(features, labels), mode, {})

    tpu_config = {"num_replicas": 2, "per_host_input_for_training": mode}
    estimator = make_estimator(tmp_path, model_fn, tpu_config=tpu_config)
    estimator.train(input_fn)
    # Each core's call reads all rows here, as input_fn does not use its index.
    assert estimator.evaluate(input_fn)["global_step"] == (10 if mode is Mode.PER_SHARD_V1 else 5)
    assert len(list(estimator.predict(input_fn))) == 40


@pytest.mark.parametrize(
    ("leaf", "message"),
    [
        (tf.constant(["text"]), r"features\['x'\] as string, expected a number or bool"),
        (tf.sparse.from_dense([1, 0]), r"features\['x'\] as a SparseTensorSpec, expected a tf.Tensor"),
        (tf.ragged.constant([[1], [1, 2]]), r"features\['x'\] as a RaggedTensorSpec, expected a tf.Tensor"),
    ],
)
def test_rejects_tensors_that_devices_do_not_take(leaf: Any, message: str) -> None:
    dataset = tf.data.Dataset.from_tensors(({"x": leaf}, tf.constant(1)))
    with pytest.raises(ValueError, match=message):
        check_for_devices(dataset.element_spec)


def test_rejects_shapes_that_are_not_static() -> None:
    with pytest.raises(ValueError, match=r"features\['x'\] as \(None,\)"):
        check_for_devices({"x": tf.TensorSpec([None], tf.int64)})

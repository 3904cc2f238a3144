import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.estimator import programs
from tests.estimator.programs import Program, make_estimator, train_input_fn, v1
from tests.estimator.tracing.test_custom_optimizers import KERAS, PROGRAMS, custom
from tests.helpers.replicas import run_alone, run_replicas, trace
from tpudata.devices.errors import ModelFnError
from tpudata.estimator import CrossShardOptimizer, TPUEstimatorSpec
from tpudata.estimator.tracing.differences import find_diverging_variables, require_cross_shard

Reduction = v1.losses.Reduction
SPECS = [tf.TensorSpec([2, 3]), tf.TensorSpec([2])]


def test_the_wrapper_changes_nothing_on_one_device(tmp_path: Path) -> None:
    def model_fn(reduction: str | None) -> Any:
        def inner(features: Any, labels: Any, mode: str) -> TPUEstimatorSpec:
            loss = tf.reduce_mean((programs.linear(features["x"]) - labels) ** 2)
            optimizer = v1.train.AdamOptimizer(0.1)
            if reduction is not None:
                optimizer = CrossShardOptimizer(optimizer, reduction=reduction)
            step = v1.train.get_global_step()
            pairs = optimizer.compute_gradients(loss)
            train_op = optimizer.apply_gradients([(tf.clip_by_norm(g, 1.0), v) for g, v in pairs], global_step=step)
            if reduction is not None:
                assert optimizer.get_slot_names() == ["m", "v"]
                assert optimizer.get_slot(pairs[0][1], "m") is not None
                assert len(optimizer.variables()) == 6
            return TPUEstimatorSpec(mode, loss=loss, train_op=train_op)

        return inner

    results = []
    for name, reduction in (("plain", None), ("mean", Reduction.MEAN), ("sum", Reduction.SUM)):
        estimator = make_estimator(tmp_path / name, model_fn(reduction))
        results.append(programs.variables(estimator.train(train_input_fn, steps=6)))
    plain, *wrapped = results
    for values in wrapped:
        assert sorted(values) == sorted(plain)
        for key, value in plain.items():
            np.testing.assert_array_equal(values[key], value, err_msg=key)


def test_rejects_other_objects_and_reductions() -> None:
    with pytest.raises(TypeError, match="or an optimizer of tf_keras or Keras 3, got float"):
        CrossShardOptimizer(0.1)
    with pytest.raises(ValueError, match="reduction"):
        CrossShardOptimizer(v1.train.GradientDescentOptimizer(0.1), reduction=Reduction.NONE)


@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("optimizer", ["v1", "keras"])
def test_takes_the_variables_of_a_keras_model(optimizer: str, replicas: int, tmp_path: Path) -> None:
    keras = pytest.importorskip("keras")
    # The call of minimize, and the pairs that a program makes of the variables.
    for call in ("all", "list", "pairs"):

        def model_fn(features: Any, labels: Any, mode: str, call: str = call) -> TPUEstimatorSpec:
            initializer = keras.initializers.Constant(0.1)
            model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, kernel_initializer=initializer)])
            loss = tf.reduce_mean((model(features["x"])[:, 0] - labels) ** 2)
            opt = v1.train.MomentumOptimizer(0.1, 0.9) if optimizer == "v1" else keras.optimizers.SGD(0.1, 0.9)
            wrapped, step = CrossShardOptimizer(opt), v1.train.get_global_step()
            if call == "pairs":
                pairs = wrapped.compute_gradients(loss)
                gradients = [gradient for gradient, _ in pairs]
                assert [variable.shape for _, variable in pairs] == [v.shape for v in model.trainable_variables]
                update = wrapped.apply_gradients(zip(gradients, model.trainable_variables, strict=True), step)
            else:
                update = wrapped.minimize(loss, step, var_list=model.trainable_variables if call == "list" else None)
            return TPUEstimatorSpec(mode, loss=loss, train_op=update)

        folder = tmp_path / call
        make_estimator(folder, model_fn, tpu_config={"num_replicas": replicas}, save_summary_steps=1).train(
            train_input_fn, steps=5
        )
        assert programs.losses(folder) == programs.losses(tmp_path / "all")
        assert programs.losses(folder)[-1] < programs.losses(folder)[0]


@pytest.mark.parametrize(
    "options", [{"gradient_accumulation_steps": 2}, {"use_ema": True, "ema_overwrite_frequency": 3}]
)
def test_rejects_keras_options_for_every_nth_step(options: dict[str, Any]) -> None:
    """In a graph they have no effect."""
    keras = pytest.importorskip("keras")
    with pytest.raises(ModelFnError, match="has no effect in a graph"):
        CrossShardOptimizer(keras.optimizers.SGD(0.1, **options))


# Batches of 16 rows.
BATCHES = [(programs.X[rows], programs.Y[rows]) for rows in (np.arange(16) + 8 * step for step in range(4))]


def on_rows(program: Any) -> Any:
    """A program as a model of the tensors of a batch."""
    model_fn = programs.side_by_side({"it": program})
    return lambda x, y: model_fn({"x": x}, y, "train")


def minimized(make: Any, reduction: str = Reduction.MEAN) -> Program:
    def program(features: Any, labels: Any, steps: Any) -> tuple[Any, Any]:
        loss = tf.reduce_mean((programs.linear(features["x"]) - labels) ** 2)
        optimizer = CrossShardOptimizer(make(), reduction)
        return loss, optimizer.minimize(loss, global_step=steps, var_list=programs.own_variables())

    return program


def in_numpy(step: Any, reduction: str, num_replicas: int) -> np.ndarray:
    """The weights and the bias after all batches; `step` changes them by a gradient, and keeps its moments."""
    values = np.append(programs.W0[:, 0].astype(np.float64), 0.0)
    moments = np.zeros([2, 4])
    for number, (x, y) in enumerate(BATCHES, 1):
        error = x @ values[:3] + values[3] - y
        gradient = 2 * np.append(x.T @ error, error.sum()) / len(y)
        step(values, moments, gradient * (num_replicas if reduction == Reduction.SUM else 1), number)
    return values


def sgd(values: Any, moments: Any, gradient: Any, number: int) -> None:
    values -= 0.02 * gradient


def momentum(values: Any, moments: Any, gradient: Any, number: int) -> None:
    moments[0] = 0.9 * moments[0] + gradient
    values -= 0.02 * moments[0]


def adam(values: Any, moments: Any, gradient: Any, number: int) -> None:
    moments[0] = 0.9 * moments[0] + 0.1 * gradient
    moments[1] = 0.999 * moments[1] + 0.001 * gradient**2
    rate = 0.02 * np.sqrt(1 - 0.999**number) / (1 - 0.9**number)
    values -= rate * moments[0] / (np.sqrt(moments[1]) + 1e-8)


WRITTEN_BY_HAND = {
    "sgd": (lambda: v1.train.GradientDescentOptimizer(0.02), sgd),
    "momentum": (lambda: v1.train.MomentumOptimizer(0.02, 0.9), momentum),
    "adam": (lambda: v1.train.AdamOptimizer(0.02), adam),
}


@pytest.mark.cases(3)
@pytest.mark.parametrize("num_replicas", [1, 2, 4, 8])
@pytest.mark.parametrize("reduction", [Reduction.MEAN, Reduction.SUM])
def test_devices_train_as_numpy_does_on_the_whole_batch(num_replicas: int, reduction: str) -> None:
    model_fn = programs.side_by_side({name: minimized(make, reduction) for name, (make, _) in WRITTEN_BY_HAND.items()})
    run = run_replicas(lambda x, y: model_fn({"x": x}, y, "train"), BATCHES, num_replicas)
    require_cross_shard(run.blueprint)
    for name, (_, step) in WRITTEN_BY_HAND.items():
        expected = in_numpy(step, reduction, num_replicas)
        found = np.concatenate([run.variables[f"{name}/linear/w"][:, :, 0], run.variables[f"{name}/linear/b"]], axis=1)
        np.testing.assert_allclose(found, np.broadcast_to(expected, found.shape), rtol=1e-4, atol=1e-5, err_msg=name)


# One optimizer of each kind; the tests of several replicas train with all.
KINDS = ["lamb", "by hand of rows", "scaled loss", "clipped inside", "keras weight decay", "tf_keras clipped"]


@pytest.mark.parametrize(
    "names", [KINDS, pytest.param(sorted(PROGRAMS.keys() - KINDS), marks=pytest.mark.matrix)], ids=["kinds", "others"]
)
def test_four_devices_train_as_one_with_programs_own_optimizers(names: list[str]) -> None:
    model_fn = programs.side_by_side({name: PROGRAMS[name] for name in names})
    alone = run_alone(lambda x, y: model_fn({"x": x}, y, "train"), BATCHES)
    run = run_replicas(lambda x, y: model_fn({"x": x}, y, "train"), BATCHES, 4)
    assert run.variables.keys() == alone.variables.keys()
    for name, value in alone.variables.items():
        found = run.variables[name]
        np.testing.assert_allclose(found, np.broadcast_to(value, found.shape), rtol=1e-4, atol=1e-5, err_msg=name)
    assert find_diverging_variables(run.blueprint, run.writes) == set()


def test_the_wrapped_optimizer_sees_one_replica(caplog: pytest.LogCaptureFixture) -> None:
    seen: list[Any] = []

    class Looks(v1.train.GradientDescentOptimizer):  # type: ignore[misc]
        def apply_gradients(self, grads_and_vars: Any, global_step: Any = None, name: str | None = None) -> Any:
            seen.append((tf.distribute.has_strategy(), tf.distribute.get_strategy().num_replicas_in_sync))
            return super().apply_gradients(grads_and_vars, global_step, name)

    graph = trace(on_rows(minimized(lambda: Looks(0.1))), SPECS, 2).graph
    assert seen == [(False, 1)]
    # One for each of the weights and the bias.
    assert [operation.type for operation in graph.get_operations()].count("CrossReplicaSum") == 2
    assert "compute_gradients" not in caplog.text


def test_warns_once_of_gradients_computed_elsewhere(caplog: pytest.LogCaptureFixture) -> None:
    def program(features: Any, labels: Any, steps: Any) -> tuple[Any, Any]:
        loss = tf.reduce_mean((programs.linear(features["x"]) - labels) ** 2)
        variables = programs.own_variables()
        pairs = zip(tf.gradients(loss, variables), variables, strict=True)
        optimizer = CrossShardOptimizer(v1.train.GradientDescentOptimizer(0.1))
        return loss, optimizer.apply_gradients(pairs, global_step=steps)

    trace(on_rows(program), SPECS, 4)
    assert caplog.text.count("summed over 4 replicas") == 1


UNWRAPPED: dict[str, Callable[[], Any]] = {
    **custom.OPTIMIZERS,
    "adam": lambda: v1.train.AdamOptimizer(0.1),
    **{
        f"{library} {name}": functools.partial(
            lambda library, make: make(pytest.importorskip(library).optimizers), library, make
        )
        for library in ("keras", "tf_keras")
        for name, make in KERAS.items()
    },
}


@pytest.mark.parametrize("name", UNWRAPPED)
def test_requires_the_wrapper_on_several_replicas(name: str) -> None:
    def program(features: Any, labels: Any, steps: Any) -> tuple[Any, Any]:
        loss = tf.reduce_mean((programs.linear(features["x"]) - labels) ** 2)
        variables = programs.own_variables()
        pairs = list(zip(tf.gradients(loss, variables), variables, strict=True))
        optimizer = UNWRAPPED[name]()
        if isinstance(optimizer, v1.train.Optimizer):
            return loss, optimizer.apply_gradients(pairs, global_step=steps)
        optimizer.apply_gradients(pairs)
        return loss, tf.no_op()

    with pytest.raises(ModelFnError, match=r"'it/linear/[wb]'.*CrossShardOptimizer\(optimizer\)"):
        require_cross_shard(trace(on_rows(program), SPECS, 2))

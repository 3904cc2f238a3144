"""Several replicas on CPU devices equal one with the same global batch."""

import os
import random
import signal
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.estimator import programs
from tests.estimator.loops.training.test_loop import OPTIMIZERS
from tests.estimator.programs import (
    Program,
    make_estimator,
    make_model_fn,
    own_variables,
    side_by_side,
    train_input_fn,
    v1,
)
from tpudata.estimator import CrossShardOptimizer, ModeKeys, ModelFnError, TPUEstimatorSpec

STEPS = 6
V1_OPTIMIZERS = {**OPTIMIZERS, "ftrl": lambda: v1.train.FtrlOptimizer(0.1)}
KERAS_OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "sgd": lambda optimizers: optimizers.SGD(0.1),
    "momentum": lambda optimizers: optimizers.SGD(0.05, momentum=0.9),
    "adam": lambda optimizers: optimizers.Adam(0.05),
    "adagrad": lambda optimizers: optimizers.Adagrad(0.1),
    "rmsprop": lambda optimizers: optimizers.RMSprop(0.01, momentum=0.5, centered=True),
    "ftrl": lambda optimizers: optimizers.Ftrl(0.1),
}


def trained(folder: Path, model_fn: Any, replicas: int, steps: int = STEPS, **config: Any) -> tuple[list[float], Any]:
    """Return the losses of all steps, and the variables after them."""
    estimator = make_estimator(
        folder / str(replicas),
        model_fn,
        iterations=1,
        save_summary_steps=1,
        tpu_config={"num_replicas": replicas},
        **config,
    )
    estimator.train(train_input_fn, max_steps=steps)
    return programs.losses(folder / str(replicas)), programs.variables(estimator)


def assert_equal_runs(one: Any, several: Any) -> None:
    np.testing.assert_allclose(several[0], one[0], rtol=1e-4, atol=1e-6)
    assert sorted(several[1]) == sorted(one[1])
    for name, value in one[1].items():
        np.testing.assert_allclose(several[1][name], value, rtol=1e-4, atol=1e-5, err_msg=name)


class AdamWeightDecay(v1.train.Optimizer):  # type: ignore[misc]
    """As in BERT and its kin: `apply_gradients` assigns each variable, and leaves the global step to the program."""

    def __init__(self) -> None:
        super().__init__(False, "AdamWeightDecay")

    def apply_gradients(self, grads_and_vars: Any, global_step: Any = None, name: str | None = None) -> Any:
        del global_step
        assignments = []
        for gradient, variable in grads_and_vars:
            if gradient is None:
                continue
            zeros = v1.zeros_initializer()
            m, v = (
                v1.get_variable(
                    f"{variable.name.partition(':')[0]}/adam_{slot}", variable.shape, initializer=zeros, trainable=False
                )
                for slot in "mv"
            )
            next_m = 0.9 * m + 0.1 * gradient
            next_v = 0.999 * v + 0.001 * tf.square(gradient)
            update = next_m / (tf.sqrt(next_v) + 1e-6) + 0.01 * variable
            assignments += [variable.assign(variable - 0.05 * update), m.assign(next_m), v.assign(next_v)]
        return tf.group(*assignments, name=name)


class Doubling(v1.train.MomentumOptimizer):  # type: ignore[misc]
    """Changes the gradients, and otherwise behaves as usual."""

    def apply_gradients(self, grads_and_vars: Any, global_step: Any = None, name: str | None = None) -> Any:
        doubled = [(None if gradient is None else 2 * gradient, variable) for gradient, variable in grads_and_vars]
        return super().apply_gradients(doubled, global_step, name)


def regression(features: Any, labels: Any) -> Any:
    return tf.reduce_mean((programs.linear(features["x"]) - labels) ** 2)


def minimized(optimizer: Callable[[], Any]) -> Program:
    def program(features: Any, labels: Any, steps: Any) -> tuple[Any, Any]:
        loss = regression(features, labels)
        return loss, CrossShardOptimizer(optimizer()).minimize(loss, global_step=steps, var_list=own_variables())

    return program


def with_a_tape(optimizer: Callable[[], Any]) -> Program:
    def program(features: Any, labels: Any, steps: Any) -> tuple[Any, Any]:
        with tf.GradientTape() as tape:
            loss = regression(features, labels)
        variables = own_variables()
        pairs = zip(tape.gradient(loss, variables), variables, strict=True)
        return loss, CrossShardOptimizer(optimizer()).apply_gradients(pairs, global_step=steps)

    return program


def of_keras(library: str, name: str) -> Program:
    style = minimized if name in ("sgd", "adam") else with_a_tape
    return style(lambda: KERAS_OPTIMIZERS[name](pytest.importorskip(library).optimizers))


def counting_itself(optimizer: Callable[[], Any]) -> Program:
    """Computes and applies in two calls, next to a variable without a gradient, and counts the steps itself."""

    def program(features: Any, labels: Any, steps: Any) -> tuple[Any, Any]:
        loss = regression(features, labels)
        v1.get_variable("unused", [2])
        chosen = CrossShardOptimizer(optimizer())
        apply = chosen.apply_gradients(chosen.compute_gradients(loss, own_variables()))
        return loss, tf.group(apply, steps.assign(steps + 1))

    return program


def clipped(reduction: str) -> Program:
    """A program that clips gradients and weights itself, with a sum over replicas."""

    def program(features: Any, labels: Any, steps: Any) -> tuple[Any, Any]:
        loss = regression(features, labels)
        optimizer = CrossShardOptimizer(v1.train.GradientDescentOptimizer(0.05), reduction=reduction)
        replicas = 1 if reduction == v1.losses.Reduction.MEAN else tf.distribute.get_strategy().num_replicas_in_sync
        pairs = [
            (gradient / replicas, variable) for gradient, variable in optimizer.compute_gradients(loss, own_variables())
        ]
        w = own_variables()[0]
        with v1.variable_scope("training"):
            apply = optimizer.apply_gradients(pairs, global_step=steps)
        with tf.control_dependencies([tf.group(apply)]):
            return loss, w.assign(tf.clip_by_value(w.read_value(), -0.35, 0.35))

    return program


PROGRAMS: dict[str, Program] = {
    **{f"v1 {name}": minimized(optimizer) for name, optimizer in V1_OPTIMIZERS.items()},
    **{f"{library} {name}": of_keras(library, name) for library in ("tf_keras", "keras") for name in KERAS_OPTIMIZERS},
    "assigns": counting_itself(AdamWeightDecay),
    "calls the usual one": counting_itself(lambda: Doubling(0.02, 0.9)),
    "averages": counting_itself(lambda: v1.train.MomentumOptimizer(0.05, 0.9, use_nesterov=True)),
    "reduced to the mean": clipped(v1.losses.Reduction.MEAN),
    "reduced to the sum": clipped(v1.losses.Reduction.SUM),
}
# The others create slots and update variables as these do; on one replica, test_loop trains with all of v1.
FEW = ["v1 momentum", "v1 adam", "v1 ftrl", *list(PROGRAMS)[-5:]]
# Each way of applying gradients with both libraries.
FEW_OF_KERAS = ["tf_keras sgd", "tf_keras momentum", "keras adam", "keras rmsprop"]
OTHERS = [name for name in PROGRAMS if name not in (*FEW, *FEW_OF_KERAS)]


@pytest.mark.cases(1)
@pytest.mark.parametrize(
    "names",
    [
        pytest.param(FEW, id="v1"),
        pytest.param(FEW_OF_KERAS, id="keras"),
        pytest.param(OTHERS, id="others", marks=pytest.mark.matrix),
    ],
)
def test_optimizers_on_two_replicas_train_as_on_one(names: list[str], tmp_path: Path) -> None:
    model_fn = side_by_side({name: PROGRAMS[name] for name in names})
    one = trained(tmp_path, model_fn, 1)
    assert_equal_runs(one, trained(tmp_path, model_fn, 2))
    for name in names:
        scope = name.replace(" ", "_")
        assert one[1][f"{scope}/steps"] == STEPS
        assert not np.allclose(one[1][f"{scope}/linear/w"], programs.W0)
        if "reduced" in name:
            assert np.abs(one[1][f"{scope}/linear/w"]).max() == np.float32(0.35)


@pytest.mark.parametrize("optimizer", ["v1", "tf_keras", "keras"])
def test_rejects_an_unwrapped_optimizer_on_several_replicas(optimizer: str, tmp_path: Path) -> None:
    def model_fn(features: Any, labels: Any, mode: str) -> TPUEstimatorSpec:
        step = v1.train.get_global_step()
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((programs.linear(features["x"]) - labels) ** 2)
        if optimizer == "v1":
            train_op = v1.train.MomentumOptimizer(0.1, 0.9).minimize(loss, global_step=step)
            return TPUEstimatorSpec(mode, loss=loss, train_op=train_op)
        variables = v1.trainable_variables()
        sgd = pytest.importorskip(optimizer).optimizers.SGD(0.1)
        sgd.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return TPUEstimatorSpec(mode, loss=loss, train_op=step.assign_add(1))

    with pytest.raises(ModelFnError, match=r"'linear/[wb]'.*CrossShardOptimizer\(optimizer\)"):
        trained(tmp_path, model_fn, 2, steps=1)
    trained(tmp_path, model_fn, 1, steps=1)


def test_rejects_an_unwrapped_optimizer_that_assigns_variables(tmp_path: Path) -> None:
    def model_fn(features: Any, labels: Any, mode: str) -> TPUEstimatorSpec:
        loss = regression(features, labels)
        apply = AdamWeightDecay().apply_gradients(AdamWeightDecay().compute_gradients(loss))
        step = v1.train.get_global_step()
        return TPUEstimatorSpec(mode, loss=loss, train_op=tf.group(apply, step.assign(step + 1)))

    with pytest.raises(ModelFnError, match=r"'linear/[wb]'.*CrossShardOptimizer\(optimizer\)"):
        trained(tmp_path, model_fn, 2, steps=1)


def collecting(seen: list[Any]) -> Any:
    """A program that uses graph collections: losses, update operations, moving averages, variables."""

    def model_fn(features: Any, labels: Any, mode: str) -> TPUEstimatorSpec:
        assert not v1.global_variables()[1:]  # the global step exists
        outputs = programs.linear(features["x"])
        v1.losses.mean_squared_error(labels, outputs)
        v1.losses.add_loss(1e-3 * tf.reduce_sum(v1.trainable_variables()[0] ** 2), v1.GraphKeys.REGULARIZATION_LOSSES)
        seen.append((len(v1.losses.get_losses()), len(v1.losses.get_regularization_losses())))
        average = v1.get_variable("average", [], initializer=v1.zeros_initializer(), trainable=False)
        calls = v1.get_variable("calls", [], tf.int32, initializer=v1.zeros_initializer(), trainable=False)
        mean = tf.distribute.get_replica_context().all_reduce("MEAN", tf.reduce_mean(labels))
        v1.add_to_collection(v1.GraphKeys.UPDATE_OPS, average.assign_add(0.1 * (mean - average)))
        v1.add_to_collection(v1.GraphKeys.UPDATE_OPS, calls.assign_add(1))
        loss = v1.losses.get_total_loss()
        updates = v1.get_collection(v1.GraphKeys.UPDATE_OPS)
        seen.append(len(updates))
        optimizer = CrossShardOptimizer(v1.train.MomentumOptimizer(0.05, 0.9))
        with v1.variable_scope("training"), tf.control_dependencies(updates):
            train_op = optimizer.minimize(loss, global_step=v1.train.get_global_step())
        seen.append([variable.name for variable in v1.trainable_variables()])
        return TPUEstimatorSpec(mode, loss=loss, train_op=train_op)

    return model_fn


def test_collections_hold_the_items_of_one_replica(tmp_path: Path) -> None:
    seen: list[Any] = []
    one = trained(tmp_path, collecting(seen), 1)
    first = seen[:3]
    assert first == [(1, 1), 2, ["linear/w:0", "linear/b:0"]]
    seen.clear()
    several = trained(tmp_path, collecting(seen), 2)
    assert seen == first  # model_fn is called once for all replicas
    assert_equal_runs(one, several)
    assert one[1]["calls"] == several[1]["calls"] == STEPS
    assert "training/linear/w/Momentum" in one[1]


def normalized(features: Any, labels: Any, mode: str) -> TPUEstimatorSpec:
    layers = pytest.importorskip("tf_keras").layers
    normalization = layers.BatchNormalization(momentum=0.5)
    net = normalization(features["x"], training=mode == ModeKeys.TRAIN)
    loss = tf.reduce_mean((layers.Dense(1)(net)[:, 0] - labels) ** 2)
    train_op = CrossShardOptimizer(v1.train.GradientDescentOptimizer(0.0)).minimize(loss, v1.train.get_global_step())
    return TPUEstimatorSpec(mode, loss=loss, train_op=tf.group(train_op, *normalization.updates))


# On several replicas, where they run by themselves, tf_keras advises against asking for them.
@pytest.mark.filterwarnings("ignore:`layer.updates` will be removed:UserWarning")
def test_batch_normalization_stores_the_averages_of_the_first_replica(tmp_path: Path) -> None:
    _, values = trained(tmp_path, normalized, 4, steps=5)
    mean, variance = np.zeros(3), np.ones(3)
    for step in range(5):
        rows = programs.X[step * 8 :][:2]
        mean, variance = 0.5 * mean + 0.5 * rows.mean(0), 0.5 * variance + 0.5 * rows.var(0)
    np.testing.assert_allclose(values["batch_normalization/moving_mean"], mean, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(values["batch_normalization/moving_variance"], variance, rtol=1e-5)


def random_rows(draw: Callable[[Any], Any]) -> Program:
    """Keep the mean of the replicas' draws, and of their squares."""

    def program(features: Any, labels: Any, steps: Any) -> tuple[Any, Any]:
        # Several draws, as two replicas may have the same mean by chance.
        drawn = tf.reduce_mean(draw(tf.ones([20, 50])), axis=1)
        means = tf.distribute.get_replica_context().all_reduce("MEAN", {"drawn": drawn, "squared": drawn**2})
        added = [
            v1.get_variable(name, [20], initializer=v1.zeros_initializer(), trainable=False).assign_add(value)
            for name, value in means.items()
        ]
        return 0.0 * tf.reduce_sum(drawn), tf.group(steps.assign_add(1), *added)

    return program


DRAWS = {
    "v1": lambda ones: v1.nn.dropout(ones, rate=0.5),
    "seeded": lambda ones: v1.nn.dropout(ones, rate=0.5, seed=3),
    "tf_keras": lambda ones: pytest.importorskip("tf_keras").layers.Dropout(0.5)(ones, training=True),
    "keras": lambda ones: pytest.importorskip("keras").layers.Dropout(0.5)(ones, training=True),
}


@pytest.mark.parametrize("seed", [1, None])
def test_replicas_draw_differently(seed: int | None, tmp_path: Path) -> None:
    model_fn = side_by_side({kind: random_rows(draw) for kind, draw in DRAWS.items()})
    _, values = trained(tmp_path, model_fn, 2, steps=1, tf_random_seed=seed)
    for kind in DRAWS:
        # The variance over the replicas: 0 if they drew the same.
        assert np.max(values[f"{kind}/squared"] - values[f"{kind}/drawn"] ** 2) > 1e-6, kind


def test_training_can_continue_on_another_number_of_replicas(tmp_path: Path) -> None:
    model_fn = make_model_fn(V1_OPTIMIZERS["adam"])
    plain = make_estimator(tmp_path / "one", model_fn)
    mixed = [make_estimator(tmp_path / "mixed", model_fn, tpu_config={"num_replicas": n}) for n in (4, 1, 2)]
    for limit, estimator in zip((5, 10, 15), mixed, strict=True):
        plain.train(train_input_fn, max_steps=limit)
        estimator.train(train_input_fn, max_steps=limit)
    expected, found = programs.variables(plain), programs.variables(mixed[0])
    assert sorted(found) == sorted(expected)
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-4, atol=1e-5, err_msg=name)


def test_model_fn_is_called_once_for_all_replicas_and_calls_of_train(tmp_path: Path) -> None:
    calls: list[str] = []
    estimator = make_estimator(tmp_path, make_model_fn(calls=calls), iterations=7, tpu_config={"num_replicas": 2})
    estimator.train(train_input_fn, max_steps=20)
    estimator.train(train_input_fn, steps=3)
    assert estimator.get_variable_value("global_step") == 23
    assert calls == ["train"]


def test_loops_of_every_length_end_at_the_last_step(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"tpu_config": {"num_replicas": 2}, "save_summary_steps": 1}
    one = programs.variables(make_estimator(tmp_path / "one").train(train_input_fn, max_steps=12))
    for iterations in (1, 7, 100):  # divides 12 steps, does not, and is larger
        folder = tmp_path / str(iterations)
        estimator = make_estimator(folder, iterations=iterations, **settings)
        estimator.train(train_input_fn, steps=12).train(train_input_fn, max_steps=12)
        ends = [step for step, _ in programs.read_events(folder)]
        assert ends == list(range(1, 13))
        for name, value in one.items():
            np.testing.assert_allclose(estimator.get_variable_value(name), value, rtol=1e-4, atol=1e-6, err_msg=name)


def test_training_changes_no_state_of_the_process(tmp_path: Path) -> None:
    def model_fn(features: Any, labels: Any, mode: str) -> TPUEstimatorSpec:
        loss = tf.reduce_mean((programs.linear(features["x"]) - labels) ** 2)
        v1.summary.scalar("twice", 2 * loss)
        train_op = CrossShardOptimizer(v1.train.AdamOptimizer(0.1)).minimize(loss, v1.train.get_global_step())
        v1.summary.scalar("thrice", 3 * loss)
        tf.summary.scalar("four times", 4 * loss)
        return TPUEstimatorSpec(mode, loss=loss, train_op=train_op)

    def state() -> tuple[Any, ...]:
        filters = list(warnings.filters), warnings.showwarning
        return *filters, dict(os.environ), signal.getsignal(signal.SIGTERM), random.getstate()

    # The first training of a process imports parts of TensorFlow, and one of them sets filters.
    trained(tmp_path / "first", model_fn, 2, steps=1)
    before = state()
    trained(tmp_path, model_fn, 2, steps=2)
    assert state() == before

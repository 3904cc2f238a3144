"""Summaries that model_fn makes, and host_call: read back from the event files."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.estimator import programs
from tests.estimator.programs import X, Y, finite_input_fn, make_estimator, train_input_fn, v1
from tpudata.estimator import CrossShardOptimizer, ModeKeys, ModelFnError, TPUEstimatorSpec

REPLICAS = pytest.mark.parametrize("replicas", [1, 2])
STEPS = 6


def values_of(folder: Path) -> dict[str, dict[int, Any]]:
    """Each tag's values by step, of all event files in the folder, older forms and newer."""
    found: dict[str, dict[int, Any]] = {}
    for path in folder.glob("*tfevents*"):
        for record in tf.data.TFRecordDataset(str(path)):
            event = v1.Event.FromString(record.numpy())
            for value in event.summary.value:
                kind = value.WhichOneof("value")
                content = getattr(value, kind)
                found.setdefault(value.tag, {})[event.step] = tf.make_ndarray(content) if kind == "tensor" else content
    return found


def oracle(steps: int = STEPS) -> tuple[list[float], list[float]]:
    """The losses of the linear model, and the sum of its weights before each step, in NumPy."""
    w, b, found, sums = programs.W0.astype(np.float64)[:, 0], 0.0, [], []
    for step in range(steps):
        rows = np.arange(step * 8, step * 8 + 8) % 40
        error = X[rows] @ w + b - Y[rows]
        found.append(float((error**2).mean()))
        sums.append(float(w.sum()))
        w, b = w - 0.1 * 2 * (X[rows].T @ error) / 8, b - 0.1 * 2 * error.mean()
    return found, sums


def losses(steps: int = STEPS) -> list[float]:
    """The losses of the linear model, in NumPy."""
    return oracle(steps)[0]


def spec_of(features: Any, labels: Any, mode: str, summarize: Any = None, **more: Any) -> TPUEstimatorSpec:
    outputs = programs.linear(features["x"])
    loss = tf.reduce_mean((outputs - labels) ** 2)
    fields = {name: make(loss, outputs) for name, make in more.items()}
    if summarize is not None:
        summarize(loss, outputs)
    if mode == ModeKeys.EVAL:
        return TPUEstimatorSpec(mode, loss=loss, **fields)
    optimizer = CrossShardOptimizer(v1.train.GradientDescentOptimizer(0.1))
    train_op = optimizer.minimize(loss, v1.train.get_global_step())
    return TPUEstimatorSpec(mode, loss=loss, train_op=train_op, **fields)


def build(folder: Path, replicas: int = 1, summarize: Any = None, more: Any = None, **config: Any) -> Any:
    def model_fn(features: Any, labels: Any, mode: str) -> TPUEstimatorSpec:
        return spec_of(features, labels, mode, summarize, **(more or {}))

    return make_estimator(folder, model_fn, tpu_config={"num_replicas": replicas}, **config)


def v1_summaries(loss: Any, outputs: Any) -> None:
    with v1.name_scope("mine"):
        v1.summary.scalar("loss", loss)
        v1.summary.histogram("outputs", outputs)
    v1.summary.histogram("weights", v1.trainable_variables()[0])
    v1.summary.image("picture", tf.reshape(tf.sigmoid(outputs), [1, -1, 1, 1]))
    v1.summary.text("words", tf.strings.as_string(loss))


@REPLICAS
@pytest.mark.filterwarnings("error")
def test_writes_v1_summaries_at_their_steps(replicas: int, tmp_path: Path) -> None:
    estimator = build(tmp_path, replicas, v1_summaries, save_summary_steps=2, iterations=2)
    for _ in range(2):
        estimator.train(train_input_fn, steps=3)
    found = values_of(tmp_path)
    steps = [1, 3, 4, 6]
    assert sorted(found["mine/loss"]) == sorted(found["loss"]) == steps
    for step in steps:
        # The second call of train restarts the data after step 3.
        assert found["mine/loss"][step] == pytest.approx(found["loss"][step], rel=1e-5)
        assert found["mine/outputs"][step].num == 8
        assert found["weights"][step].num == 3
    assert found["mine/loss"][3] == pytest.approx(losses()[2], rel=1e-4)
    # Variables have their values before the step.
    assert found["weights"][1].sum == pytest.approx(programs.W0.sum(), abs=1e-6)
    picture = found["picture/image/0" if "picture/image/0" in found else "picture/image"][1]
    assert (picture.height, picture.width) == (8 // replicas, 1)
    if replicas == 1:  # strings are the first replica's
        assert float(found["words"][3]) == pytest.approx(losses()[2], rel=1e-4)


@pytest.mark.cases(1)
@REPLICAS
def test_summaries_show_variables_before_the_step(replicas: int, tmp_path: Path) -> None:
    def summarize(loss: Any, outputs: Any) -> None:
        del loss, outputs
        v1.summary.scalar("total", tf.reduce_sum(v1.trainable_variables()[0]))
        v1.summary.scalar("at", v1.train.get_global_step())

    estimator = build(tmp_path, replicas, summarize, save_summary_steps=4, iterations=4)
    estimator.train(train_input_fn, steps=9)
    found = values_of(tmp_path)
    sums = oracle(9)[1]
    assert found["total"] == pytest.approx({step: sums[step - 1] for step in (1, 5, 9)}, rel=1e-4, abs=1e-6)
    assert found["at"] == {1: 0, 5: 4, 9: 8}


@REPLICAS
def test_summaries_run_their_assignments_once_each(replicas: int, tmp_path: Path) -> None:
    def summarize(loss: Any, outputs: Any) -> None:
        del loss, outputs
        count = v1.get_variable("count", [], initializer=v1.zeros_initializer(), trainable=False)
        v1.summary.scalar("written", count.assign_add(1.0))

    estimator = build(tmp_path, replicas, summarize, save_summary_steps=4, iterations=4)
    # The data ends before step 9, at which the third summary would be written.
    estimator.train(lambda params: train_input_fn(params).take(8), steps=9)
    assert values_of(tmp_path)["written"] == {1: 1.0, 5: 2.0}
    assert estimator.get_variable_value("count") == 2.0


def test_writes_only_the_summary_op_of_a_scaffold(tmp_path: Path) -> None:
    def scaffold_fn(loss: Any, outputs: Any) -> Any:
        v1.summary.scalar("left_out", loss)
        return lambda: v1.train.Scaffold(summary_op=v1.summary.merge([v1.summary.scalar("chosen", 2 * loss)]))

    build(tmp_path, more={"scaffold_fn": scaffold_fn}, save_summary_steps=1, iterations=1).train(
        train_input_fn, steps=2
    )
    found = values_of(tmp_path)
    assert "left_out" not in found
    assert found["chosen"][2] == pytest.approx(2 * losses()[1], rel=1e-4)


def test_writes_no_summaries_without_save_summary_steps(tmp_path: Path) -> None:
    build(tmp_path, summarize=v1_summaries, save_summary_steps=None).train(train_input_fn, steps=3)
    assert values_of(tmp_path) == {}


@pytest.mark.cases(1)
@REPLICAS
def test_writes_tf_summary_at_the_same_steps(replicas: int, tmp_path: Path) -> None:
    def summarize(loss: Any, outputs: Any) -> None:
        tf.summary.scalar("new/loss", loss)
        tf.summary.histogram("new/outputs", outputs)
        tf.summary.scalar("new/own_step", loss, step=v1.train.get_global_step() * 10)

    estimator = build(tmp_path, replicas, summarize, save_summary_steps=2, iterations=2)
    for _ in range(2):
        estimator.train(train_input_fn, steps=3)
    estimator.evaluate(lambda params: train_input_fn(params).take(2))
    found = values_of(tmp_path)
    assert sorted(found["new/loss"]) == sorted(found["loss"]) == [1, 3, 4, 6]
    assert found["new/outputs"][1].shape[1] == 3
    if replicas == 1:  # the first of several replicas writes
        assert found["new/loss"][3] == pytest.approx(losses()[2], rel=1e-4)
        assert found["new/own_step"][20] == found["new/loss"][3]
    assert "new/loss" not in values_of(tmp_path / "eval")


def test_writes_tf_summary_until_the_data_ends(tmp_path: Path) -> None:
    def summarize(loss: Any, outputs: Any) -> None:
        del outputs
        tf.summary.scalar("new/loss", loss)

    estimator = build(tmp_path, 1, summarize, save_summary_steps=2, iterations=2)
    estimator.train(lambda params: train_input_fn(params).take(4))
    assert sorted(values_of(tmp_path)["new/loss"]) == [1, 3]


@pytest.mark.parametrize("replicas", [pytest.param(1, marks=pytest.mark.matrix), 2])
def test_writes_tf_summary_with_different_hooks_per_call(replicas: int, tmp_path: Path) -> None:
    def summarize(loss: Any, outputs: Any) -> None:
        tf.summary.scalar("new", loss)
        tf.identity(loss, name="one")
        tf.identity(outputs, name="two")

    estimator = build(tmp_path, replicas, summarize, save_summary_steps=1)
    for name in ("one", "two"):
        estimator.train(train_input_fn, hooks=[v1.train.LoggingTensorHook([name], 100)], steps=2)
    assert sorted(values_of(tmp_path)["new"]) == [1, 2, 3, 4]


def test_writes_v1_and_tf_summary_of_one_model(tmp_path: Path) -> None:
    def summarize(loss: Any, outputs: Any) -> None:
        v1.summary.scalar("old", loss)
        tf.summary.scalar("new", loss)

    build(tmp_path, 1, summarize, save_summary_steps=1, iterations=1).train(train_input_fn, steps=2)
    found = values_of(tmp_path)
    for step in (1, 2):
        assert found["old"][step] == found["new"][step] == pytest.approx(losses()[step - 1], rel=1e-4)


def in_a_loop(scalar: Any, loss: Any) -> Any:
    def body(number: Any, total: Any) -> Any:
        scalar("inner", total)
        return number + 1, total + loss

    return tf.while_loop(lambda number, _: number < 3, body, [0, loss], maximum_iterations=3)[1]


def in_a_branch(scalar: Any, loss: Any) -> Any:
    def branch() -> Any:
        scalar("inner", loss)
        return 2 * loss

    return tf.cond(loss > 0, branch, lambda: loss)


def in_a_map(scalar: Any, loss: Any) -> Any:
    def double(value: Any) -> Any:
        scalar("inner", value)
        return 2 * value

    return tf.reduce_sum(tf.map_fn(double, tf.stack([loss, loss])))


def summarize_inside(kind: str, construct: Any) -> Any:
    def summarize(loss: Any, outputs: Any) -> None:
        del outputs
        scalar = v1.summary.scalar if kind == "v1" else tf.summary.scalar
        scalar("outer", construct(scalar, loss))

    return summarize


@REPLICAS
@pytest.mark.parametrize("construct", [in_a_loop, in_a_branch, in_a_map])
@pytest.mark.parametrize("kind", ["v1", "v2"])
def test_rejects_summaries_in_loops_and_branches(kind: str, construct: Any, replicas: int, tmp_path: Path) -> None:
    estimator = build(tmp_path, replicas, summarize_inside(kind, construct))
    with pytest.raises(ModelFnError, match=r"is in a loop, a branch or a function, .* Make the summary outside"):
        estimator.train(train_input_fn, steps=1)


def test_accepts_unwritten_summaries_in_loops(tmp_path: Path) -> None:
    build(tmp_path, 1, summarize_inside("v1", in_a_loop), save_summary_steps=None).train(train_input_fn, steps=1)


@REPLICAS
def test_writes_tf_summary_of_a_tf_function_without_devices(replicas: int, tmp_path: Path) -> None:
    def write_inside(loss: Any) -> Any:
        tf.summary.scalar("inner", loss)
        return 2 * loss

    double = tf.function(write_inside)
    estimator = build(
        tmp_path, replicas, lambda loss, _: tf.summary.scalar("outer", double(loss)), save_summary_steps=1
    )
    if replicas > 1:
        with pytest.raises(
            ModelFnError, match=r"tf.summary in 'StatefulPartitionedCall' is in a loop, a branch or a func"
        ):
            estimator.train(train_input_fn, steps=2)
    else:
        estimator.train(train_input_fn, steps=2)
        found = values_of(tmp_path)
        assert sorted(found["inner"]) == sorted(found["outer"]) == [1, 2]


def test_an_evaluation_names_its_checkpoint(tmp_path: Path) -> None:
    estimator = build(tmp_path).train(train_input_fn, steps=2)
    estimator.evaluate(finite_input_fn(16))
    assert values_of(tmp_path / "eval")["checkpoint_path"][2] == str(tmp_path / "model.ckpt-2").encode()


def host_call_into(folder: Path, every: int) -> Any:
    """Return a host_call in the style of older programs, with a dict or a list of tensors."""

    def host_fn(step: Any, loss: Any, outputs: Any) -> Any:
        writer = tf.summary.create_file_writer(str(folder))
        with writer.as_default(), tf.summary.record_if(tf.equal(step[0] % every, 0)):
            tf.summary.scalar("host/loss", tf.reduce_mean(loss), step=step[0])
            tf.summary.scalar("host/rows", tf.size(outputs), step=step[0])
        return v1.summary.all_v2_summary_ops()

    def make(loss: Any, outputs: Any, as_dict: bool = False) -> Any:
        step = tf.reshape(v1.train.get_or_create_global_step().read_value(), [1])
        tensors = [step, tf.reshape(loss, [1]), outputs]
        return host_fn, dict(zip(("step", "loss", "outputs"), tensors, strict=True)) if as_dict else tensors

    return make


@pytest.mark.parametrize(
    ("every", "replicas"),
    [*((1, 2), (2, 1)), *(pytest.param(n, n, marks=pytest.mark.matrix) for n in (1, 2))],
)
def test_host_call_runs_at_its_steps(every: int, replicas: int, tmp_path: Path) -> None:
    more = {"host_call": host_call_into(tmp_path / "host", every)}
    estimator = build(tmp_path / "model", replicas, more=more, iterations=4)
    estimator.train(train_input_fn, steps=STEPS)
    found = values_of(tmp_path / "host")
    steps = list(range(0, STEPS, every))
    assert list(found["host/loss"]) == steps
    np.testing.assert_allclose(list(found["host/loss"].values()), np.array(losses())[steps], rtol=1e-4)
    assert {int(rows) for rows in found["host/rows"].values()} == {8}


@REPLICAS
def test_evaluation_runs_a_host_call_of_a_dict(replicas: int, tmp_path: Path) -> None:
    make = host_call_into(tmp_path / "host", 1)
    more = {"host_call": lambda loss, outputs: make(loss, outputs, as_dict=True)}
    estimator = build(tmp_path / "model", replicas, more=more)
    estimator.evaluate(lambda params: train_input_fn(params).take(1))
    found = values_of(tmp_path / "host")
    assert found["host/loss"][0] == pytest.approx(losses()[0], rel=1e-4)


def test_host_calls_of_two_estimators_write_separate_files(tmp_path: Path) -> None:
    for name in "ab":
        more = {"host_call": host_call_into(tmp_path / name / "host", 1)}
        build(tmp_path / name, more=more).train(train_input_fn, steps=2)
    for name in "ab":
        assert list(values_of(tmp_path / name / "host")["host/loss"]) == [0, 1]


@pytest.mark.parametrize(
    ("host_call", "error", "message"),
    [
        ([1, 2, 3], ValueError, "host_call"),
        ((3, []), TypeError, "not callable"),
        ((lambda a: a, 3), TypeError, "second part"),
        ((lambda a, b: (a, b), [1]), ValueError, r"host_fn\(a, b\) does not take 1 tensor:"),
        ((lambda a: a, {"b": 1}), ValueError, r"does not take \['b'\]"),
    ],
)
def test_rejects_wrong_host_calls(host_call: Any, error: type[Exception], message: str, tmp_path: Path) -> None:
    with pytest.raises(error, match=message):
        build(tmp_path, more={"host_call": lambda *_: host_call}).train(train_input_fn, steps=1)


def test_several_replicas_reject_a_scalar_for_host_call(tmp_path: Path) -> None:
    more = {"host_call": lambda loss, _: (lambda loss: loss, [loss])}
    build(tmp_path / "one", more=more).train(train_input_fn, steps=1)
    with pytest.raises(ValueError, match=r"host_call.*got the scalar.*Reshape it to \[1\]"):
        build(tmp_path / "two", 2, more=more).train(train_input_fn, steps=1)


def test_several_replicas_reject_an_unknown_rank_for_host_call(tmp_path: Path) -> None:
    more = {"host_call": lambda loss, _: (lambda loss: loss, [v1.placeholder_with_default([loss], shape=None)])}
    with pytest.raises(ValueError, match=r"host_call.*of unknown rank.*Set its shape"):
        build(tmp_path, 2, more=more).train(train_input_fn, steps=1)

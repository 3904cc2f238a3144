# ruff: noqa: ARG002  (hooks and listeners are called with all arguments)
"""Hooks on one replica and on several: the values they see, and when they are called."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.estimator import programs
from tests.estimator.hooks.recording import REPLICAS, Recorder, build, model_fn, trajectory
from tests.estimator.programs import X, Y, finite_input_fn, make_estimator, train_input_fn, v1
from tpudata.errors import UsageError
from tpudata.estimator import CrossShardOptimizer, EstimatorSpec, TPUEstimatorSpec


@REPLICAS
def test_training_hooks_see_every_step_in_order(replicas: int, tmp_path: Path) -> None:
    calls: list[str] = []
    estimator = build(tmp_path, replicas, lambda **_: [Recorder(name="spec ", calls=calls)])
    estimator.train(train_input_fn, hooks=[Recorder(name="own ", calls=calls)], steps=3)
    each = ["own before", "spec before", "own after", "spec after"]
    ends = [f"{who} {what}" for what in ("begin", "created") for who in ("own", "spec")]
    assert calls == [*ends, *each * 3, "own end", "spec end"]


@REPLICAS
def test_fetches_the_values_of_each_step_by_name_and_tensor(replicas: int, tmp_path: Path) -> None:
    losses, weights = trajectory(5)
    named = Recorder({"loss": "the_loss:0", "deep": [("outputs:0", "rate:0")], "op": "outputs"})
    state = Recorder(["global_step:0", "linear/w:0"])
    spec: list[Recorder] = []

    def hooks(loss: Any) -> list[Any]:
        spec.append(Recorder([loss, v1.train.get_global_step(), v1.trainable_variables()[0]]))
        return spec[-1:]

    build(tmp_path, replicas, hooks).train(train_input_fn, hooks=[named, state], steps=5)
    np.testing.assert_allclose([result["loss"] for result in named.results], losses, rtol=1e-4)
    np.testing.assert_allclose([result[0] for result in spec[0].results], losses, rtol=1e-4)
    assert [int(result[1]) for result in spec[0].results] == [0, 1, 2, 3, 4]
    for step, (by_name, by_state, by_spec) in enumerate(
        zip(named.results, state.results, spec[0].results, strict=True)
    ):
        outputs, rate = by_name["deep"][0]
        assert outputs.shape == (8,)
        assert np.mean((outputs - Y[np.arange(step * 8, step * 8 + 8) % 40]) ** 2) == pytest.approx(by_name["loss"])
        assert rate == pytest.approx(0.1 * 0.5 ** (step / 2))
        assert by_name["op"] is None
        assert by_state[0] == step
        np.testing.assert_allclose(by_state[1][:, 0], weights[step], rtol=1e-4, atol=1e-6)
        np.testing.assert_array_equal(by_state[1], by_spec[2])


def test_the_session_reads_and_changes_the_variables(tmp_path: Path) -> None:
    class Clip(v1.train.SessionRunHook):  # type: ignore[misc]
        def begin(self) -> None:
            self.w = v1.trainable_variables()[0]
            self.value = v1.placeholder(tf.float32, [3, 1])
            self.assign = self.w.assign(self.value)
            self.norm = tf.norm(self.w)
            self.seen: list[Any] = []

        def after_run(self, run_context: Any, run_values: Any) -> None:
            session = run_context.session
            norm, w, step = session.run([self.norm, self.w, "global_step:0"])
            assert norm == pytest.approx(np.linalg.norm(w), rel=1e-5)
            session.run(self.assign, feed_dict={self.value: np.clip(w, -0.5, 0.5)})
            self.seen.append((int(step), np.abs(session.run(self.w)).max()))

        def end(self, session: Any) -> None:
            self.w.load(np.full([3, 1], 7.0, np.float32), session)  # after the last checkpoint

    found = []
    for replicas in (1, 2):
        hook = Clip()
        estimator = build(tmp_path / str(replicas), replicas, save_checkpoints_steps=1, keep_checkpoint_max=0)
        estimator.train(train_input_fn, hooks=[hook], steps=6)
        assert [step for step, _ in hook.seen] == [1, 2, 3, 4, 5, 6]
        assert max(largest for _, largest in hook.seen) == 0.5
        found.append(estimator.get_variable_value("linear/w"))
    # Checkpoints precede the hook, so each holds one step from clipped values.
    np.testing.assert_allclose(found[0], found[1], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("method", ["after_run", "end"])
@REPLICAS
def test_evaluation_ignores_assignments_after_the_last_checkpoint(replicas: int, method: str, tmp_path: Path) -> None:
    class Assign(v1.train.SessionRunHook):  # type: ignore[misc]
        def begin(self) -> None:
            (bias,) = (item for item in v1.trainable_variables() if item.op.name == "linear/b")
            self.assign = bias.assign([100.0])

        def after_run(self, context: Any, values: Any) -> None:
            if method == "after_run":
                context.session.run(self.assign)

        def end(self, session: Any) -> None:
            if method == "end":
                session.run(self.assign)

    settings: dict[str, Any] = {"tpu_config": {"num_replicas": replicas}, "save_checkpoints_steps": 1}
    estimator, other = (make_estimator(tmp_path, **settings) for _ in range(2))
    estimator.train(train_input_fn, steps=1, hooks=[Assign()])
    assert estimator.evaluate(train_input_fn, steps=2) == other.evaluate(train_input_fn, steps=2)


@REPLICAS
def test_operations_of_begin_run_on_the_host(replicas: int, tmp_path: Path) -> None:
    class Host(v1.train.SessionRunHook):  # type: ignore[misc]
        def begin(self) -> None:
            graph = v1.get_default_graph()
            self.calls = v1.get_variable("hook/calls", [], tf.int32, initializer=v1.zeros_initializer())
            outputs = graph.get_tensor_by_name("outputs:0")
            with tf.control_dependencies([self.calls.assign_add(1)]):
                self.told = tf.numpy_function(lambda rows: np.int64(len(rows)), [outputs], tf.int64)
            self.text = tf.strings.join(["step ", tf.strings.as_string(v1.train.get_global_step())])
            self.results: list[Any] = []

        def before_run(self, run_context: Any) -> Any:
            return v1.train.SessionRunArgs({"rows": self.told, "text": self.text})

        def after_run(self, run_context: Any, run_values: Any) -> None:
            self.results.append(run_values.results)

        def end(self, session: Any) -> None:
            self.total = session.run(self.calls)

    hook = Host()
    estimator = build(tmp_path, replicas)
    for _ in range(2):  # a second run begins with a new graph
        estimator.train(train_input_fn, hooks=[hook], steps=3)
        assert hook.total == 3
        assert [result["rows"] for result in hook.results] == [8, 8, 8]
    assert hook.results[0]["text"] == b"step 3"
    assert estimator.get_variable_names() == ["global_step", "linear/b", "linear/w"]


def test_rejects_fetching_the_batch_after_the_step(tmp_path: Path) -> None:
    class Late(v1.train.SessionRunHook):  # type: ignore[misc]
        def after_run(self, run_context: Any, run_values: Any) -> None:
            run_context.session.run("the_loss:0")

    with pytest.raises(ValueError, match=r"depends on the batch.*SessionRunArgs"):
        build(tmp_path).train(train_input_fn, hooks=[Late()], steps=1)


def test_hooks_feed_their_own_placeholders_only(tmp_path: Path) -> None:
    class Scaled(v1.train.SessionRunHook):  # type: ignore[misc]
        def begin(self) -> None:
            self.factor = v1.placeholder(tf.float32, [])
            self.scaled = self.factor * v1.get_default_graph().get_tensor_by_name("the_loss:0")

        def before_run(self, run_context: Any) -> Any:
            return v1.train.SessionRunArgs([self.scaled, "the_loss:0"], feed_dict={self.factor: 3.0})

        def after_run(self, run_context: Any, run_values: Any) -> None:
            scaled, loss = run_values.results
            assert scaled == pytest.approx(3 * loss)

    estimator = build(tmp_path)
    estimator.train(train_input_fn, hooks=[Scaled()], steps=2)
    with pytest.raises(ValueError, match=r"'outputs:0'.*step is compiled.*variable\.load"):
        estimator.train(train_input_fn, hooks=[v1.train.FeedFnHook(lambda: {"outputs:0": np.zeros(8)})], steps=1)
    first = Scaled()
    other = v1.train.FeedFnHook(lambda: {first.factor: 1.0})
    with pytest.raises(RuntimeError, match="Two hooks feed"):
        estimator.train(train_input_fn, hooks=[first, other], steps=1)


@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        ([1.0, 2.0, 3.0], ValueError, r"'fed:0' has the shape \(2,\) and cannot be fed values of shape \(3,\)"),
        ("x", ValueError, r"'fed:0' \(float32\) cannot be fed 'x'"),
        (None, ValueError, r"'fed:0' has the shape"),
    ],
)
def test_rejects_feeds_of_wrong_shapes_and_types(
    value: Any, error: type[Exception], message: str, tmp_path: Path
) -> None:
    class Fed(v1.train.SessionRunHook):  # type: ignore[misc]
        def __init__(self, through_session: bool) -> None:
            self.through_session = through_session

        def begin(self) -> None:
            self.fed = v1.placeholder(tf.float32, [2], name="fed")
            self.doubled = 2 * self.fed

        def before_run(self, run_context: Any) -> Any:
            if self.through_session:
                run_context.session.run(self.doubled, {self.fed: value})
            return v1.train.SessionRunArgs(self.doubled, feed_dict={self.fed: value})

    for through_session in (False, True):
        with pytest.raises(error, match=message):
            build(tmp_path).train(train_input_fn, hooks=[Fed(through_session)], steps=1)


@pytest.mark.parametrize("through_session", [False, True])
def test_rejects_the_feed_of_an_operation(through_session: bool, tmp_path: Path) -> None:
    class Feeding(v1.train.SessionRunHook):  # type: ignore[misc]
        def begin(self) -> None:
            self.nothing = tf.no_op("nothing")

        def before_run(self, run_context: Any) -> Any:
            if through_session:
                run_context.session.run("global_step:0", {self.nothing: 1})
            return v1.train.SessionRunArgs("global_step:0", feed_dict={self.nothing: 1})

    with pytest.raises(TypeError, match="'nothing' is an operation"):
        build(tmp_path).train(train_input_fn, hooks=[Feeding()], steps=1)


def test_rejects_a_fetch_that_is_a_value(tmp_path: Path) -> None:
    value = tf.constant(3.0)

    class Fetching(v1.train.SessionRunHook):  # type: ignore[misc]
        def before_run(self, run_context: Any) -> Any:
            del run_context
            return v1.train.SessionRunArgs(value)

    with pytest.raises(ValueError, match=r"is a value, not a tensor of the graph"):
        build(tmp_path).train(train_input_fn, hooks=[Fetching()], steps=1)


@REPLICAS
def test_request_stop_ends_training_at_its_step(replicas: int, tmp_path: Path) -> None:
    class Stop(v1.train.SessionRunHook):  # type: ignore[misc]
        def after_run(self, run_context: Any, run_values: Any) -> None:
            if run_context.session.run("global_step:0") == 3:
                run_context.request_stop()

    estimator = build(tmp_path, replicas)
    recorder = Recorder()
    estimator.train(train_input_fn, hooks=[Stop(), recorder], steps=100)
    assert estimator.get_variable_value("global_step") == 3
    assert recorder.calls[-2:] == ["after", "end"]


def test_calls_end_of_hooks_when_the_data_ends(tmp_path: Path) -> None:
    recorder = Recorder("the_loss:0")
    build(tmp_path).train(finite_input_fn(20), hooks=[recorder], steps=100)
    assert recorder.calls[2:] == [*["before", "after"] * 3, "before", "end"]
    assert len(recorder.results) == 3


def test_an_error_of_a_hook_saves_no_last_checkpoint(tmp_path: Path) -> None:
    class Broken(Recorder):
        def after_run(self, run_context: Any, run_values: Any) -> None:
            super().after_run(run_context, run_values)
            if len(self.results) == 2:
                raise KeyError("own")

    hook = Broken()
    estimator = build(tmp_path)
    with pytest.raises(KeyError, match="own"):
        estimator.train(train_input_fn, hooks=[hook], steps=5)
    assert estimator.latest_checkpoint() == str(tmp_path / "model.ckpt-0")
    assert "end" not in hook.calls


@REPLICAS
def test_evaluation_and_prediction_hooks_fetch_each_batch(replicas: int, tmp_path: Path) -> None:
    made: list[Recorder] = []

    def hooks(**tensors: Any) -> list[Any]:
        made.append(Recorder(list(tensors.values())))
        return made[-1:]

    def whole(params: dict[str, Any]) -> Any:
        return (
            finite_input_fn(32)(params)
            .map(lambda f, y: (tf.ensure_shape(f["x"], [None, 3]), y))
            .map(lambda x, y: ({"x": tf.reshape(x, [params["batch_size"], 3])}, tf.reshape(y, [params["batch_size"]])))
        )

    estimator = build(tmp_path, replicas, hooks)
    # The second round reuses the first one's graphs, which does not depend on the replicas.
    for _ in range(2 if replicas == 1 else 1):
        own = Recorder(["the_loss:0", "global_step:0"])
        result = estimator.evaluate(whole, hooks=[own])
        expected = [np.mean((X[i : i + 8] @ programs.W0[:, 0] - Y[i : i + 8]) ** 2) for i in range(0, 32, 8)]
        np.testing.assert_allclose([loss for loss, _ in own.results], expected, rtol=1e-4)
        np.testing.assert_allclose([result[0] for result in made[-1].results], expected, rtol=1e-4)
        assert result["loss"] == pytest.approx(np.mean(expected), rel=1e-4)
        assert own.calls == ["begin", "created", *["before", "after"] * 4, "before", "end"]
        own = Recorder("the_loss:0")
        estimator.evaluate(whole, steps=2, hooks=[own])  # its end is known, so no third batch is requested
        assert own.calls == ["begin", "created", *["before", "after"] * 2, "end"]
        own = Recorder("outputs:0")
        rows = list(estimator.predict(whole, hooks=[own]))
        np.testing.assert_allclose(np.concatenate(own.results), [row["outputs"] for row in rows], rtol=1e-5)
        np.testing.assert_allclose(
            np.concatenate([item[0] for item in made[-1].results]), X[:32] @ programs.W0[:, 0], rtol=1e-4
        )
        assert own.calls[-1] == "end"

    class Stop(v1.train.SessionRunHook):  # type: ignore[misc]
        def after_run(self, run_context: Any, run_values: Any) -> None:
            run_context.request_stop()

    assert len(list(estimator.predict(whole, hooks=[Stop()]))) == 8
    assert estimator.evaluate(whole, hooks=[Stop()])["loss"] == pytest.approx(expected[0], rel=1e-4)


def test_hooks_fetch_strings_that_end_with_zero_bytes(tmp_path: Path) -> None:
    def with_text(features: Any, labels: Any, mode: str) -> Any:
        spec = model_fn(features, labels, mode, {})
        tf.strings.join([tf.as_string(tf.math.count_nonzero(features["x"])), b"\0\0"], name="text")
        return spec

    estimator = make_estimator(tmp_path, with_text)
    of_evaluation, of_prediction = Recorder("text:0"), Recorder("text:0")
    estimator.evaluate(finite_input_fn(8), hooks=[of_evaluation])
    list(estimator.predict(finite_input_fn(8), hooks=[of_prediction]))
    for recorder in (of_evaluation, of_prediction):
        assert np.asarray(recorder.results[0], object).item() == b"24\0\0"


@pytest.mark.parametrize(
    ("hooks", "error", "message"),
    [
        ([object()], TypeError, "SessionRunHook instances"),
        ([lambda: None], TypeError, "SessionRunHook instances"),
        (v1.train.SessionRunHook(), TypeError, r"hooks=.* must be a list of hooks.*Put it into a list"),
    ],
)
@pytest.mark.parametrize("call", ["train", "evaluate", "predict"])
def test_rejects_objects_that_are_not_hooks(
    call: str, hooks: Any, error: type[Exception], message: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=message):
        list(getattr(build(tmp_path), call)(train_input_fn, hooks=hooks))


def test_rejects_run_options_and_wrong_training_hooks(tmp_path: Path) -> None:
    class Traced(v1.train.SessionRunHook):  # type: ignore[misc]
        def before_run(self, run_context: Any) -> Any:
            options = v1.RunOptions(trace_level=v1.RunOptions.FULL_TRACE)
            return v1.train.SessionRunArgs("the_loss:0", options=options)

    with pytest.raises(ValueError, match="RunOptions"):
        build(tmp_path).train(train_input_fn, hooks=[Traced()], steps=1)

    def bad(features: Any, labels: Any, mode: str) -> Any:
        loss = tf.reduce_mean((programs.linear(features["x"]) - labels) ** 2)
        return TPUEstimatorSpec(mode, loss=loss, train_op=loss, training_hooks=[3])

    with pytest.raises(TypeError, match="training_hooks"):
        make_estimator(tmp_path, bad).train(train_input_fn, steps=1)


def test_chief_hooks_of_the_plain_spec_come_first(tmp_path: Path) -> None:
    calls: list[str] = []

    def plain(features: Any, labels: Any, mode: str) -> Any:
        loss = tf.reduce_mean((programs.linear(features["x"]) - labels) ** 2)
        train_op = v1.train.GradientDescentOptimizer(0.1).minimize(loss, v1.train.get_global_step())
        hooks = [Recorder(name="spec ", calls=calls)]
        chief = [Recorder(name="chief ", calls=calls)]
        return EstimatorSpec(mode, loss=loss, train_op=train_op, training_hooks=hooks, training_chief_hooks=chief)

    make_estimator(tmp_path, plain).train(train_input_fn, hooks=[Recorder(name="own ", calls=calls)], steps=1)
    assert calls[:3] == ["chief begin", "own begin", "spec begin"]


def test_hooks_on_a_tpu_fire_at_the_ends_of_loops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tpudata.devices.processes.topology import make_local_topology
    from tpudata.estimator import tpu_estimator

    topology = dataclasses.replace(make_local_topology(2), is_tpu=True)
    monkeypatch.setattr(tpu_estimator, "make_local_topology", lambda _: topology)
    hook = Recorder(["the_loss:0", "global_step:0"])
    estimator = build(tmp_path, 2, iterations=4)
    estimator.train(train_input_fn, hooks=[hook], steps=10)
    losses, _ = trajectory(10)
    np.testing.assert_allclose([loss for loss, _ in hook.results], [losses[i] for i in (3, 7, 9)], rtol=1e-4)
    assert [int(step) for _, step in hook.results] == [0, 4, 8]


@REPLICAS
def test_unnamed_tensors_are_fetched_correctly(replicas: int, tmp_path: Path) -> None:
    """They are matched by their number within their kind, as names count differently in the step's graph."""
    made: list[Recorder] = []

    def unnamed(features: Any, labels: Any, mode: str) -> TPUEstimatorSpec:
        x = features["x"]
        sums = [tf.reduce_sum(x * factor) for factor in (1.0, 10.0, 100.0)]
        rows = tf.cast(tf.cast(x[:, 0], tf.float64) * 2, tf.float32)
        loss = tf.reduce_mean((programs.linear(x) - labels) ** 2)
        optimizer = CrossShardOptimizer(v1.train.GradientDescentOptimizer(0.1))
        train_op = optimizer.minimize(loss, v1.train.get_global_step())
        drawn = tf.random.uniform([])
        made.append(Recorder([sums, rows, features["x"], labels, drawn, drawn + 1]))
        return TPUEstimatorSpec(mode, loss=loss, train_op=train_op, training_hooks=made[-1:])

    make_estimator(tmp_path, unnamed, tpu_config={"num_replicas": replicas}).train(train_input_fn, steps=3)
    for step, (sums, rows, x, labels, drawn, more) in enumerate(made[0].results):
        expected = X[step * 8 : step * 8 + 8]
        np.testing.assert_array_equal(x, expected)
        np.testing.assert_array_equal(labels, Y[step * 8 : step * 8 + 8])
        np.testing.assert_allclose(rows, expected[:, 0] * 2, rtol=1e-5)
        mean = expected.sum() / replicas  # the replicas' own sums, averaged
        np.testing.assert_allclose(sums, [mean, mean * 10, mean * 100], rtol=1e-4, atol=1e-4)
        assert more == pytest.approx(drawn + 1)  # of the same draw


@pytest.mark.parametrize("replicas", [pytest.param(1, marks=pytest.mark.matrix), 2])
def test_a_hook_can_evaluate_and_predict_during_training(replicas: int, tmp_path: Path) -> None:
    """Both use the last checkpoint, and training continues unaffected."""

    class Evaluating(v1.train.SessionRunHook):  # type: ignore[misc]
        def __init__(self, estimator: Any) -> None:
            self.estimator = estimator
            self.seen: list[Any] = []

        def after_run(self, run_context: Any, run_values: Any) -> None:
            def data(params: dict[str, Any]) -> Any:
                return train_input_fn(params).take(1)

            row = next(self.estimator.predict(data))
            result = self.estimator.evaluate(data)
            self.seen.append((int(result["global_step"]), float(result["loss"]), float(row["outputs"])))

    estimator = build(tmp_path / "a", replicas, save_checkpoints_steps=2, iterations=1)
    hook = Evaluating(estimator)
    estimator.train(train_input_fn, hooks=[hook], steps=3)
    assert [step for step, *_ in hook.seen] == [0, 2, 2]
    assert hook.seen[0][1] == pytest.approx(trajectory(1)[0][0], rel=1e-4)
    assert hook.seen[0][2] == pytest.approx((X[0] @ programs.W0)[0], rel=1e-4)
    plain = build(tmp_path / "b", replicas, iterations=1)
    plain.train(train_input_fn, steps=3)
    np.testing.assert_allclose(
        estimator.get_variable_value("linear/w"), plain.get_variable_value("linear/w"), rtol=1e-5, atol=1e-6
    )
    nested = Recorder(lambda: estimator.train(train_input_fn, steps=1))
    with pytest.raises(UsageError, match="the same estimator is already training or evaluating"):
        estimator.train(train_input_fn, hooks=[nested], steps=1)


def test_hooks_of_the_same_fetches_do_not_rebuild_the_step(tmp_path: Path) -> None:
    calls: list[str] = []

    def counting(features: Any, labels: Any, mode: str) -> Any:
        calls.append(mode)
        return model_fn(features, labels, mode, {})

    estimator = make_estimator(tmp_path, counting)

    def hooks() -> list[Any]:
        return [Recorder("the_loss:0"), v1.train.StopAtStepHook(num_steps=2)]

    estimator.train(train_input_fn, hooks=hooks(), steps=5)
    assert len(calls) == 1
    estimator.train(train_input_fn, hooks=hooks(), steps=5)
    assert len(calls) == 2  # a graph for the new hooks
    estimator.train(train_input_fn, steps=5)
    assert len(calls) == 2


@pytest.mark.parametrize("error", [StopIteration("the feed"), tf.errors.OutOfRangeError(None, None, "the feed")])
@pytest.mark.parametrize(("method", "steps"), [("before_run", 2), ("after_run", 3)])
def test_a_hook_that_raises_end_of_data_ends_the_run(error: Exception, method: str, steps: int, tmp_path: Path) -> None:
    def ending() -> Any:
        """Make a hook that raises in its third call."""
        hook, calls = v1.train.SessionRunHook(), iter([None, None])

        def call(*_: Any) -> None:
            if next(calls, error) is error:
                raise error

        setattr(hook, method, call)
        return hook

    estimator, recorder = build(tmp_path), Recorder()
    estimator.train(train_input_fn, hooks=[ending(), recorder], steps=9)
    assert estimator.get_variable_value("global_step") == steps
    assert programs.newest_step(tmp_path) == steps
    assert recorder.calls[-1] == "end"
    seen = Recorder("the_loss")
    estimator.evaluate(finite_input_fn(40), hooks=[seen, ending()])
    assert (seen.calls.count("after"), seen.calls[-1]) == (steps, "end")
    assert len(list(estimator.predict(finite_input_fn(40), hooks=[ending()]))) == steps * 8

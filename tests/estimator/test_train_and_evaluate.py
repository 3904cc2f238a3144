import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from tests.estimator.programs import (
    X,
    Y,
    finite_input_fn,
    losses,
    make_estimator,
    make_model_fn,
    read_events,
    train_input_fn,
    v1,
    variables,
)
from tpudata.estimator import EvalSpec, Exporter, TrainSpec, train_and_evaluate


class Recorder(Exporter):
    """Records the arguments of its calls."""

    def __init__(self, name: Any = "recorder") -> None:
        self._name = name
        self.calls: list[Mapping[str, Any]] = []

    @property
    def name(self) -> Any:
        return self._name

    def export(self, **call: Any) -> str:  # type: ignore[override]
        self.calls.append(call)
        return f"{self._name}-{call['eval_result']['global_step']}"


def evaluated_steps(folder: Path, name: str = "eval") -> list[int]:
    return [step for step, _ in read_events(folder / name)]


def test_evaluates_each_checkpoint_but_the_first(tmp_path: Path) -> None:
    exporter = Recorder()
    estimator = make_estimator(tmp_path, save_checkpoints_steps=4)
    result, exports = train_and_evaluate(
        estimator,
        TrainSpec(train_input_fn, max_steps=10),
        EvalSpec(finite_input_fn(40), exporters=exporter, throttle_secs=0),
    )
    assert evaluated_steps(tmp_path) == [4, 8, 10]
    assert exports == ["recorder-10"]
    assert [call["eval_result"]["global_step"] for call in exporter.calls] == [4, 8, 10]
    assert [call["is_the_final_export"] for call in exporter.calls] == [False, False, True]
    assert [call["checkpoint_path"] for call in exporter.calls] == [
        str(tmp_path / f"model.ckpt-{n}") for n in (4, 8, 10)
    ]
    assert {call["export_path"] for call in exporter.calls} == {str(tmp_path / "export" / "recorder")}
    assert all(call["estimator"] is estimator for call in exporter.calls)
    assert result == exporter.calls[-1]["eval_result"] == make_estimator(tmp_path).evaluate(finite_input_fn(40))


# Loops of 4 steps are in the test above.
@pytest.mark.parametrize("iterations", [pytest.param(1, marks=pytest.mark.matrix), 1000])
def test_evaluates_each_checkpoint_for_any_loop_size(iterations: int, tmp_path: Path) -> None:
    estimator = make_estimator(tmp_path, save_checkpoints_steps=5, iterations=iterations)
    spec = EvalSpec(finite_input_fn(8), throttle_secs=0)
    train_and_evaluate(estimator, TrainSpec(train_input_fn, max_steps=17), spec)
    assert evaluated_steps(tmp_path) == [5, 10, 15, 17]


def test_evaluations_do_not_change_training(tmp_path: Path) -> None:
    alone = make_estimator(tmp_path / "alone", save_checkpoints_steps=4, save_summary_steps=1, iterations=1)
    alone.train(train_input_fn, max_steps=12)
    both = make_estimator(tmp_path / "both", save_checkpoints_steps=4, save_summary_steps=1, iterations=1)
    spec = EvalSpec(finite_input_fn(20), throttle_secs=0)
    train_and_evaluate(both, TrainSpec(train_input_fn, max_steps=12), spec)
    assert losses(tmp_path / "both") == losses(tmp_path / "alone")
    expected = variables(alone)
    assert all((value == expected[name]).all() for name, value in variables(both).items())


def test_two_replicas_evaluate_as_one(tmp_path: Path) -> None:
    results = []
    for shards in (None, 2):
        folder = tmp_path / str(shards)
        estimator = make_estimator(folder, save_checkpoints_steps=4, tpu_config={"num_replicas": shards})
        spec = EvalSpec(train_input_fn, steps=5, throttle_secs=0)
        results.append(train_and_evaluate(estimator, TrainSpec(train_input_fn, max_steps=10), spec)[0])
        assert evaluated_steps(folder) == [4, 8, 10]
    one, two = results
    assert one is not None
    assert two == pytest.approx(one, rel=1e-5)


def test_throttle_secs_leaves_the_first_and_last_evaluation(tmp_path: Path) -> None:
    estimator = make_estimator(tmp_path, save_checkpoints_steps=4)
    train_and_evaluate(estimator, TrainSpec(train_input_fn, max_steps=20), EvalSpec(finite_input_fn(8)))
    assert evaluated_steps(tmp_path) == [4, 20]


@pytest.mark.parametrize("saver", ["estimator", "hook"])
def test_the_last_evaluation_precedes_the_end_of_training_hooks(saver: str, tmp_path: Path) -> None:
    calls: list[Any] = []

    class Notes(v1.train.SessionRunHook):  # type: ignore[misc]
        def end(self, session: Any) -> None:
            calls.append(("end", int(session.run(v1.train.get_global_step()))))

    exporter = Recorder()
    exporter.export = lambda **call: calls.append(("evaluated", int(call["eval_result"]["global_step"])))  # type: ignore[method-assign, assignment]
    hooks = [] if saver == "estimator" else [v1.train.CheckpointSaverHook(str(tmp_path), save_steps=2)]
    spec = TrainSpec(train_input_fn, max_steps=6, hooks=[*hooks, Notes()])
    # Throttled after the first evaluation.
    estimator = make_estimator(tmp_path, save_checkpoints_steps=2)
    train_and_evaluate(estimator, spec, EvalSpec(finite_input_fn(8), exporters=exporter))
    assert calls == [("evaluated", 2), ("evaluated", 6), ("end", 6)]


def test_evaluates_the_last_checkpoint_once(tmp_path: Path) -> None:
    spec = EvalSpec(finite_input_fn(8), name="held_out", steps=1)
    train_and_evaluate(make_estimator(tmp_path), TrainSpec(train_input_fn, max_steps=4), spec)
    assert evaluated_steps(tmp_path, "eval_held_out") == [4]


def test_trains_until_the_data_ends_without_max_steps(tmp_path: Path) -> None:
    exporter = Recorder()
    result, _ = train_and_evaluate(
        make_estimator(tmp_path), TrainSpec(finite_input_fn(40)), EvalSpec(finite_input_fn(8), exporters=[exporter])
    )
    assert result is not None
    assert result["global_step"] == 5
    assert [call["is_the_final_export"] for call in exporter.calls] == [False]


def test_a_second_start_continues(tmp_path: Path) -> None:
    spec = EvalSpec(finite_input_fn(8), throttle_secs=0)
    for limit in (4, 8):
        estimator = make_estimator(tmp_path, save_checkpoints_steps=4)
        result, exports = train_and_evaluate(estimator, TrainSpec(train_input_fn, max_steps=limit), spec)
        assert result is not None
        assert result["global_step"] == limit
        assert exports == []
    assert evaluated_steps(tmp_path) == [4, 8]
    calls: list[str] = []
    done = make_estimator(tmp_path, make_model_fn(calls=calls))
    assert train_and_evaluate(done, TrainSpec(train_input_fn, max_steps=8), spec) == (None, None)
    assert calls == []
    assert evaluated_steps(tmp_path) == [4, 8]


def test_evaluates_the_initial_values_without_training_data(tmp_path: Path) -> None:
    result, _ = train_and_evaluate(
        make_estimator(tmp_path), TrainSpec(finite_input_fn(0), max_steps=4), EvalSpec(finite_input_fn(8))
    )
    assert result is not None
    assert result["global_step"] == 0


def test_steps_limit_the_evaluation(tmp_path: Path) -> None:
    seen: list[int] = []

    def input_fn(params: dict[str, Any]) -> Any:
        def count() -> Any:
            for row in range(40):
                seen.append(row)
                yield {"x": X[row]}, Y[row]

        spec = ({"x": tf.TensorSpec([3], tf.float32)}, tf.TensorSpec([], tf.float32))
        return tf.data.Dataset.from_generator(count, output_signature=spec).batch(params["batch_size"])

    train_and_evaluate(make_estimator(tmp_path), TrainSpec(train_input_fn, max_steps=1), EvalSpec(input_fn, steps=2))
    assert 16 <= len(seen) < 40


def test_positional_arguments_have_the_original_order() -> None:
    original: dict[Any, list[str]] = {
        TrainSpec: ["input_fn", "max_steps", "hooks", "saving_listeners"],
        EvalSpec: ["input_fn", "steps", "name", "hooks", "exporters", "start_delay_secs", "throttle_secs"],
        train_and_evaluate: ["estimator", "train_spec", "eval_spec"],
    }
    for function, order in original.items():
        parameters = inspect.signature(function).parameters.values()
        positional = [item.name for item in parameters if item.kind is item.POSITIONAL_OR_KEYWORD]
        assert positional == order[: len(positional)]


@pytest.mark.parametrize(
    ("kind", "arguments", "error", "message"),
    [
        (TrainSpec, {"input_fn": 3}, TypeError, r"TrainSpec\(input_fn"),
        (TrainSpec, {"max_steps": 0}, ValueError, "max_steps"),
        (TrainSpec, {"max_steps": 1.5}, TypeError, "max_steps"),
        (EvalSpec, {"input_fn": None}, TypeError, r"EvalSpec\(input_fn"),
        (EvalSpec, {"steps": 0}, ValueError, "steps"),
        (EvalSpec, {"name": 3}, TypeError, "name"),
        (EvalSpec, {"throttle_secs": -1}, ValueError, "throttle_secs"),
        (EvalSpec, {"start_delay_secs": "1"}, TypeError, "start_delay_secs"),
        (EvalSpec, {"exporters": [3]}, TypeError, "exporters"),
        (EvalSpec, {"exporters": [Recorder(""), Recorder("a")]}, ValueError, "name"),
        (EvalSpec, {"exporters": [Recorder(3)]}, ValueError, "string"),
        (EvalSpec, {"exporters": [Recorder("a"), Recorder("a")]}, ValueError, "names must differ"),
    ],
)
def test_specs_reject_wrong_arguments(
    kind: Any, arguments: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        kind(**{"input_fn": finite_input_fn(8), **arguments})


def test_rejects_arguments_of_wrong_types(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="estimator"):
        train_and_evaluate(tmp_path, TrainSpec(train_input_fn), EvalSpec(train_input_fn))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="train_spec"):
        train_and_evaluate(make_estimator(tmp_path), EvalSpec(train_input_fn), TrainSpec(train_input_fn))  # type: ignore[arg-type]

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.estimator.programs import X, finite_input_fn, make_estimator, train_input_fn
from tpudata.estimator import (
    BestExporter,
    EvalSpec,
    Exporter,
    FinalExporter,
    LatestExporter,
    TrainSpec,
    export,
    train_and_evaluate,
)

receiver_fn = export.build_raw_serving_input_receiver_fn({"x": tf.TensorSpec([None, 3], tf.float32)})


def run(folder: Path, exporter: Exporter, max_steps: int, every: int = 4, until_the_end: bool = False) -> Any:
    estimator = make_estimator(folder, save_checkpoints_steps=every, keep_checkpoint_max=None)
    train_spec = TrainSpec(finite_input_fn(40)) if until_the_end else TrainSpec(train_input_fn, max_steps=max_steps)
    _, exports = train_and_evaluate(
        estimator, train_spec, EvalSpec(finite_input_fn(40), exporters=exporter, throttle_secs=0)
    )
    return exports


def exported(folder: Path, name: str) -> list[Path]:
    """The folders of the exports, the oldest first."""
    return sorted((folder / "export" / name).glob("[0-9]*"))


def step_of(path: Path) -> int:
    return int(tf.train.load_variable(str(path / "variables" / "variables"), "global_step"))


def test_latest_exporter_keeps_the_newest_exports(tmp_path: Path) -> None:
    (tmp_path / "export" / "latest" / "123").mkdir(parents=True)
    results = run(tmp_path, LatestExporter("latest", receiver_fn, exports_to_keep=2), 12)
    folders = exported(tmp_path, "latest")
    assert folders.pop(0).name == "123"  # not written here
    assert [step_of(path) for path in folders] == [8, 12]
    assert results == [str(folders[-1]).encode()]
    outputs = tf.saved_model.load(str(folders[-1])).signatures["serving_default"](x=tf.constant(X))["outputs"]
    expected = [row["outputs"] for row in make_estimator(tmp_path).predict(finite_input_fn(40))]
    np.testing.assert_allclose(outputs, expected, rtol=1e-6)


def test_latest_exporter_keeps_all_without_a_limit(tmp_path: Path) -> None:
    run(tmp_path, LatestExporter("latest", receiver_fn, exports_to_keep=None), 24)
    assert [step_of(path) for path in exported(tmp_path, "latest")] == [4, 8, 12, 16, 20, 24]


def test_final_exporter_exports_only_the_end(tmp_path: Path) -> None:
    results = run(tmp_path, FinalExporter("final", receiver_fn), 12)
    (folder,) = exported(tmp_path, "final")
    assert step_of(folder) == 12
    assert results == [str(folder).encode()]
    assert run(tmp_path / "until_the_end", FinalExporter("final", receiver_fn), 0, until_the_end=True) == [None]


class Scripted(BestExporter):
    """A BestExporter with scripted losses."""

    def __init__(self, losses: list[float], **arguments: Any) -> None:
        super().__init__(serving_input_receiver_fn=receiver_fn, **arguments)
        self.losses = losses

    def export(self, **call: Any) -> bytes | None:  # type: ignore[override]
        call["eval_result"] = {**call["eval_result"], "loss": self.losses.pop(0)}
        return super().export(**call)


def test_best_exporter_exports_only_lower_losses(tmp_path: Path) -> None:
    run(tmp_path, Scripted([5.0, 6.0, 4.0, 4.0, float("nan")], exports_to_keep=None), 20)
    assert [step_of(path) for path in exported(tmp_path, "best_exporter")] == [4, 12]


def test_best_exporter_follows_its_compare_fn(tmp_path: Path) -> None:
    def higher(best_eval_result: Mapping[str, Any], current_eval_result: Mapping[str, Any]) -> bool:
        return bool(current_eval_result["loss"] > best_eval_result["loss"])

    run(tmp_path, Scripted([5.0, 4.0, 6.0], compare_fn=higher, name="high"), 12)
    assert [step_of(path) for path in exported(tmp_path, "high")] == [4, 12]


def write_result(folder: Path, step: int, loss: float) -> None:
    """Write the event file of an earlier evaluation."""
    with tf.summary.create_file_writer(str(folder)).as_default():
        value = tf.compat.v1.Summary.Value(tag="loss", simple_value=loss)
        summary = tf.compat.v1.Summary(value=[value])
        tf.summary.experimental.write_raw_pb(summary.SerializeToString(), step=step)


@pytest.mark.cases(1)
@pytest.mark.parametrize(
    ("recorded", "pattern", "steps"),
    [
        (-1.0, "eval_old/*.tfevents.*", [4]),
        pytest.param(
            -1.0, None, [4, 8], marks=pytest.mark.matrix
        ),  # as in test_best_exporter_exports_a_better_model_after_a_restart
        (-1.0, "eval_other/*.tfevents.*", [4, 8]),
        (1e9, "eval_old/*.tfevents.*", [4, 8]),
    ],
)
def test_best_exporter_compares_with_recorded_results(
    recorded: float, pattern: str | None, steps: list[int], tmp_path: Path
) -> None:
    for limit in (4, 8):
        run(tmp_path, BestExporter("best", receiver_fn, event_file_pattern=pattern), limit)
        write_result(tmp_path / "eval_old", 3, recorded)
    assert [step_of(path) for path in exported(tmp_path, "best")] == steps


def test_best_exporter_exports_a_better_model_after_a_restart(tmp_path: Path) -> None:
    """When the event files are read, they already hold the result of this evaluation."""
    for limit in (4, 8):
        run(tmp_path, BestExporter("best", receiver_fn), limit)
    assert [step_of(path) for path in exported(tmp_path, "best")] == [4, 8]


def test_best_exporter_ignores_results_without_an_export(tmp_path: Path) -> None:
    write_result(tmp_path / "eval", 3, -1.0)
    run(tmp_path, BestExporter("best", receiver_fn), 4)
    assert [step_of(path) for path in exported(tmp_path, "best")] == [4]


def test_exporters_keep_the_original_order_of_arguments() -> None:
    common = ["name", "serving_input_receiver_fn", "assets_extra", "as_text"]
    best = ["name", "serving_input_receiver_fn", "event_file_pattern", "compare_fn", *common[2:], "exports_to_keep"]
    assert list(inspect.signature(LatestExporter).parameters) == [*common, "exports_to_keep"]
    assert list(inspect.signature(FinalExporter).parameters) == common
    assert list(inspect.signature(BestExporter).parameters) == best


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: LatestExporter("a", receiver_fn, exports_to_keep=0), r"LatestExporter\(exports_to_keep"),
        (lambda: BestExporter("a", receiver_fn, exports_to_keep=-1), r"BestExporter\(exports_to_keep"),
        (lambda: BestExporter("a"), "serving_input_receiver_fn"),
        (lambda: BestExporter("a", receiver_fn, compare_fn=lambda best: bool(best)), "compare_fn"),
        (lambda: BestExporter("a", receiver_fn, compare_fn=None), "compare_fn"),  # type: ignore[arg-type]
    ],
)
def test_exporters_reject_wrong_arguments(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()

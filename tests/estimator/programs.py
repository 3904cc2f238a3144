"""Small programs that the estimator's tests train: a linear model whose numbers can be computed by hand."""

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import tensorflow as tf

from tpudata.estimator import CrossShardOptimizer, ModeKeys, RunConfig, TPUConfig, TPUEstimator, TPUEstimatorSpec

v1 = tf.compat.v1

_rng = np.random.default_rng(7)
X = _rng.normal(size=(40, 3)).astype(np.float32)
Y = (X @ np.array([[1.0], [-2.0], [0.5]]) + 0.3).astype(np.float32)[:, 0]
W0 = np.array([[0.1], [0.2], [-0.3]], np.float32)


def linear(x: Any) -> Any:
    with v1.variable_scope("linear"):
        w = v1.get_variable("w", initializer=tf.constant(W0))
        b = v1.get_variable("b", [1], initializer=v1.zeros_initializer())
    return tf.matmul(x, w)[:, 0] + b


def metric_fn(labels: Any, outputs: Any, weights: Any) -> dict[str, Any]:
    return {"mae": v1.metrics.mean_absolute_error(labels, outputs, weights=weights)}


def make_model_fn(
    optimizer: Callable[[], Any] = lambda: v1.train.GradientDescentOptimizer(0.1), calls: list[str] | None = None
) -> Callable[..., TPUEstimatorSpec]:
    """A v1-style linear regression; `calls` gathers the modes in which it is called."""

    def model_fn(features: Any, labels: Any, mode: str, params: dict[str, Any]) -> TPUEstimatorSpec:
        if calls is not None:
            calls.append(mode)
        x = features["x"] if isinstance(features, dict) else features
        outputs = linear(x)
        if mode == ModeKeys.PREDICT:
            return TPUEstimatorSpec(mode, predictions={"outputs": outputs, "inputs": x})
        weights = features.get("weights") if isinstance(features, dict) else None
        weights = tf.ones_like(labels) if weights is None else weights
        loss = tf.reduce_sum(weights * (outputs - labels) ** 2) / tf.reduce_sum(weights)
        if mode == ModeKeys.TRAIN:
            step = v1.train.get_global_step()
            train_op = CrossShardOptimizer(optimizer()).minimize(loss, global_step=step)
            return TPUEstimatorSpec(mode, loss=loss, train_op=train_op)
        return TPUEstimatorSpec(mode, loss=loss, eval_metrics=(metric_fn, [labels, outputs, weights]))

    return model_fn


Program = Callable[[Any, Any, Any], tuple[Any, Any]]


def own_variables() -> list[Any]:
    """The trainable variables of the current variable scope."""
    return list(v1.trainable_variables(f"{v1.get_variable_scope().name}/"))


def side_by_side(programs: Mapping[str, Program]) -> Callable[..., TPUEstimatorSpec]:
    """A model_fn that trains several programs, each in a separate variable scope, as each of them would be trained alone.

    Args:
        programs: functions of features, labels and the program's own count of steps, `NAME/steps`, to loss and train_op, by name.
    """

    def model_fn(features: Any, labels: Any, mode: str) -> TPUEstimatorSpec:
        losses, train_ops = [], []
        for name, program in programs.items():
            with v1.variable_scope(name.replace(" ", "_")):
                zeros = v1.zeros_initializer()
                steps = v1.get_variable("steps", [], tf.int64, initializer=zeros, trainable=False)
                loss, train_op = program(features, labels, steps)
            losses.append(loss)
            train_ops.append(train_op)
        with tf.control_dependencies(train_ops):
            count = v1.train.get_global_step().assign_add(1)
        return TPUEstimatorSpec(mode, loss=tf.add_n(losses), train_op=tf.group(count, *train_ops))

    return model_fn


def saved_steps(folder: Path) -> list[int]:
    """The steps of the checkpoints in a folder, in order."""
    return sorted(int(path.name.removeprefix("model.ckpt-")[:-6]) for path in folder.glob("model.ckpt-*.index"))


def train_input_fn(params: dict[str, Any]) -> Any:
    """Endless batches in order."""
    return tf.data.Dataset.from_tensor_slices(({"x": X}, Y)).repeat().batch(params["batch_size"], drop_remainder=True)


def finite_input_fn(rows: int) -> Callable[..., Any]:
    """The first rows, once, with the short last batch."""

    def input_fn(params: dict[str, Any]) -> Any:
        return tf.data.Dataset.from_tensor_slices(({"x": X[:rows]}, Y[:rows])).batch(params["batch_size"])

    return input_fn


def make_estimator(
    model_dir: Path,
    model_fn: Any = None,
    batch_size: int = 8,
    iterations: Any = 4,
    tpu_config: Mapping[str, Any] = MappingProxyType({}),
    **config: Any,
) -> Any:
    config.setdefault("tf_random_seed", 1)
    return TPUEstimator(
        model_fn or make_model_fn(),
        model_dir=str(model_dir),
        config=RunConfig(TPUConfig(iterations_per_loop=iterations, **tpu_config), **config),
        use_tpu=False,
        train_batch_size=batch_size,
        eval_batch_size=batch_size,
        predict_batch_size=batch_size,
    )


def read_events(folder: Path) -> list[tuple[int, dict[str, float]]]:
    """Read the scalars of a folder's event files in the order they were written, by TensorFlow's own reader of them.

    Files of one second differ by a counter alone, and 10 sorts before 9, so the time in each event decides.
    """
    found: list[tuple[float, int, dict[str, float]]] = []
    for path in folder.glob("events.out.tfevents.*"):
        for record in tf.data.TFRecordDataset(str(path)):
            event = v1.Event.FromString(record.numpy())
            if event.HasField("summary"):
                scalars = [value for value in event.summary.value if value.HasField("simple_value")]
                if scalars:
                    values = {value.tag: value.simple_value for value in scalars}
                    found.append((event.wall_time, int(event.step), values))
    return [(step, values) for _, step, values in sorted(found, key=lambda item: item[0])]


def losses(folder: Path) -> list[float]:
    return [values["loss"] for _, values in read_events(folder) if "loss" in values]


def variables(estimator: TPUEstimator) -> dict[str, Any]:
    return {name: estimator.get_variable_value(name) for name in estimator.get_variable_names()}


def newest_step(folder: Path) -> int | None:
    """The step of a folder's newest checkpoint."""
    path = tf.train.latest_checkpoint(str(folder))
    return None if path is None else int(path.rpartition("-")[2])

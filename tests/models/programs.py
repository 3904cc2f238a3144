"""Helpers of the tests of models: networks in separate graphs, and estimators of a few rows."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from tpudata.estimator import Finding, ModeKeys, RunConfig, TPUConfig, TPUEstimator

v1 = tf.compat.v1


def run_graph(
    build: Callable[[], Any], values: Mapping[str, Any] | None = None, seed: int = 1, updates: bool = False
) -> tuple[Any, dict[str, Any]]:
    """Returns what `build` computes in a new graph, and its variables, by name, afterwards.

    Args:
        build: returns tensors.
        values: of variables, by name; the others have their first values.
        seed: of the first values.
        updates: whether to run UPDATE_OPS, too.
    """
    with tf.Graph().as_default(), v1.Session() as session:
        v1.set_random_seed(seed)
        outputs = build()
        known = values or {}
        # Initial values that are given are not computed.
        given = {v.initial_value: known[v.op.name] for v in v1.global_variables() if v.op.name in known}
        session.run(v1.global_variables_initializer(), given)
        found, _ = session.run((outputs, v1.get_collection(v1.GraphKeys.UPDATE_OPS) if updates else []))
        return found, {variable.op.name: session.run(variable) for variable in v1.global_variables()}


def first_values(build: Callable[[], Any], seed: int = 1) -> dict[str, Any]:
    """The variables' first values by name."""
    return run_graph(build, seed=seed)[1]


def random_values(build: Callable[[], Any], seed: int = 0, scale: float = 0.3) -> dict[str, Any]:
    """Values for the variables that `build` makes, as of random_like."""
    with tf.Graph().as_default():
        build()
        shapes = {variable.op.name: np.empty(variable.shape.as_list()) for variable in v1.global_variables()}
    return random_like(shapes, seed, scale)


def random_like(values: Mapping[str, Any], seed: int = 0, scale: float = 0.3) -> dict[str, Any]:
    """Other values of the same shapes; those named variance are positive."""
    rng = np.random.default_rng(seed)
    found = {}
    for name, value in values.items():
        drawn = rng.normal(scale=scale, size=value.shape)
        found[name] = (np.abs(drawn) + 0.5 if "variance" in name or "gamma" in name else drawn).astype(np.float32)
    return found


def rows(features: Mapping[str, Any], labels: Any, forever: bool = False, padded: bool = False) -> Callable[..., Any]:
    """An input_fn of all rows in order: endless for training, with a padded last batch for evaluation, or as they are."""

    def input_fn(params: dict[str, Any]) -> Any:
        size = params["batch_size"]
        count = len(labels)
        padding = -count % size if padded else 0

        def filled(value: Any) -> Any:
            # The values of padding must not matter.
            return np.concatenate([value, np.full((padding, *value.shape[1:]), 1, value.dtype)])

        parts = {name: filled(value) for name, value in features.items()}
        if padded:
            weights = np.r_[np.ones(count), np.zeros(padding)].astype(np.float32)
            parts["weights"] = weights
            if "token_weights" in parts:
                parts["token_weights"] = parts["token_weights"] * weights[:, None]
        data = tf.data.Dataset.from_tensor_slices((parts, filled(labels)))
        return (data.repeat() if forever else data).batch(size, drop_remainder=forever or padded)

    return input_fn


def estimator(
    model_fn: Callable[..., Any], folder: Path, batch_size: int = 8, replicas: int | None = None, **params: Any
) -> TPUEstimator:
    return TPUEstimator(
        model_fn,
        config=RunConfig(
            TPUConfig(iterations_per_loop=5, num_replicas=replicas), tf_random_seed=1, model_dir=str(folder)
        ),
        params=params,
        use_tpu=False,
        train_batch_size=batch_size,
        eval_batch_size=batch_size,
        predict_batch_size=batch_size,
    )


def rehearsed(
    model_fn: Callable[..., Any], folder: Path, features: Mapping[str, Any], labels: Any, **params: Any
) -> tuple[Finding, ...]:
    """Return findings of training, evaluation and prediction on a TPU of 8 cores with a row each."""
    rehearsal = TPUEstimator(
        model_fn,
        str(folder),
        config=RunConfig(TPUConfig()),
        params=params,
        rehearse=True,
        train_batch_size=8,
        eval_batch_size=8,
        predict_batch_size=8,
    )
    evaluation = rows(features, labels, padded=True)
    modes = {ModeKeys.TRAIN: rows(features, labels, forever=True), ModeKeys.EVAL: evaluation}
    return rehearsal.rehearse({**modes, ModeKeys.PREDICT: evaluation})


def variables(trained: TPUEstimator) -> dict[str, Any]:
    return {name: trained.get_variable_value(name) for name in trained.get_variable_names()}

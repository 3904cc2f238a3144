"""Metrics of an evaluation, as a model_fn or a metric_fn returns them."""

from collections.abc import Iterable, Mapping
from typing import Protocol, TypeAlias

import tensorflow as tf

from tpudata.checks import require_type
from tpudata.devices.errors import ModelFnValueError
from tpudata.estimator.api.errors import ModelFnTypeError
from tpudata.tensor_types import GraphElement

_RESERVED_NAMES = ("loss", "global_step")


class KerasMetric(Protocol):
    """Metric of tf_keras or Keras 3 whose update_state was called."""

    @property
    def variables(self) -> Iterable[object]:
        """The variables that hold its state: `tf.Variable`s, or Keras' own, which have one as `value`."""

    def result(self) -> tf.Tensor:
        """Return the value."""


# (value, update_op) of v1 metrics, or a Keras metric.
Metric: TypeAlias = tuple[tf.Tensor, GraphElement] | KerasMetric


def check_metrics(metrics: Mapping[str, Metric], label: str) -> None:
    """Check a dict of metrics.

    Args:
        metrics: from name to a (value, update_op) pair or a Keras metric.
        label: name of the argument that has the dict, for messages.

    Raises:
        TypeError: it is not a dict, or an entry is neither a pair nor a metric.
        ValueError: an entry has a name that evaluate reserves.
    """
    require_type(label, metrics, isinstance(metrics, Mapping), "a dict from name to metric", ModelFnTypeError)
    for name, metric in metrics.items():
        if name in _RESERVED_NAMES:
            raise ModelFnValueError(
                f"{label} has a metric {name!r}, which evaluate reports itself. Choose another name."
            )
        # Operations, tensors and variables have a device; tf.group makes the same test.
        is_pair = isinstance(metric, tuple | list) and len(metric) == 2 and hasattr(metric[1], "device")
        if not is_pair and not callable(getattr(metric, "result", None)):
            raise ModelFnTypeError(
                f"{label}: the metric {name!r} must be a (value, update_op) pair or a Keras metric, got {metric!r}."
            )

"""Variables that no checkpoint contains: the sums of metrics, which restart with each run."""

from collections.abc import Sequence

import tensorflow as tf

from tpudata.estimator.state.blueprint import Blueprint, VariableInfo

_Aggregation = tf.VariableAggregation


class LocalVariables:
    """Variables that belong to one run and are reset before it.

    On several devices each replica has its own value. The value of the variable is their sum, unless it has another aggregation.

    Args:
        blueprint: blueprint of the function that makes the variables.
        infos: the variables among those of the blueprint.
    """

    def __init__(self, blueprint: Blueprint, infos: Sequence[VariableInfo]) -> None:
        self._initial_values = blueprint.compute_initial_values(infos)
        self.by_name = {info.name: self._make(info) for info in infos}

    def _make(self, info: VariableInfo) -> tf.Variable:
        initial_value = self._initial_values[info.name]
        is_number = initial_value.dtype.is_floating or initial_value.dtype.is_integer
        aggregation = info.aggregation
        # Bools and strings have no sum.
        if aggregation is _Aggregation.NONE:
            aggregation = _Aggregation.SUM if is_number else _Aggregation.ONLY_FIRST_REPLICA
        return tf.Variable(initial_value, trainable=False, name=info.name, aggregation=aggregation)

    def reset(self) -> None:
        """Set every variable to its initial value, on the host."""
        for name, variable in self.by_name.items():
            variable.assign(self._initial_values[name])

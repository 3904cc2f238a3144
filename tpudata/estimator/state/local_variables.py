"""Variables that no checkpoint contains: the sums of metrics, which restart with each run."""

from collections.abc import Sequence

import tensorflow as tf

from tpudata.estimator.state.blueprint import Blueprint, VariableInfo

_Aggregation = tf.VariableAggregation


class LocalVariables:
    """Variables that belong to one run and are reset before it.

    On several devices each replica has its own value. A variable's aggregation joins these values; numbers are added by default.

    Attributes:
        by_name: the variables by name.

    Args:
        blueprint: blueprint of the function that makes the variables.
        infos: the variables that belong to one run, from the blueprint.
    """

    def __init__(self, blueprint: Blueprint, infos: Sequence[VariableInfo]) -> None:
        self._initial_values = blueprint.compute_initial_values(infos)
        self.by_name = {info.name: self._make_variable(info) for info in infos}

    def _make_variable(self, info: VariableInfo) -> tf.Variable:
        """Return a variable with its initial value.

        Unless model_fn chose an aggregation, the replicas' values are summed if they are numbers; otherwise the first replica's
        value counts.
        """
        initial_value = self._initial_values[info.name]
        is_number = initial_value.dtype.is_floating or initial_value.dtype.is_integer
        aggregation = info.aggregation
        if aggregation is _Aggregation.NONE:  # The default. Bools and strings have no sum.
            aggregation = _Aggregation.SUM if is_number else _Aggregation.ONLY_FIRST_REPLICA
        return tf.Variable(initial_value, trainable=False, name=info.name, aggregation=aggregation)

    def reset(self) -> None:
        """Set every variable to its initial value, on the host."""
        for name, variable in self.by_name.items():
            variable.assign(self._initial_values[name])

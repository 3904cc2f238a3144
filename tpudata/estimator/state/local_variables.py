"""Variables that no checkpoint contains: the sums of metrics, which restart with each run."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tpudata.estimator.state.blueprint import Blueprint, VariableInfo

_Aggregation = tf.VariableAggregation


class LocalVariables:
    """Variables that belong to one run and are reset before it.

    Each replica has its own copy; the value is the sum over the replicas, unless the variable has another aggregation.

    Args:
        blueprint: blueprint of the function that makes the variables.
        infos: the variables among those of the blueprint.
        strategy: strategy whose replicas have the variables.
    """

    def __init__(self, blueprint: Blueprint, infos: Sequence[VariableInfo], strategy: Any) -> None:
        self._strategy = strategy
        self._initial = blueprint.initial_values(infos)
        with strategy.scope():
            self.by_key = {info.key: (info, self._make(info)) for info in infos}
        self.by_name = {info.name: variable for info, variable in self.by_key.values()}
        several = strategy.num_replicas_in_sync > 1
        self.joined = {
            name: tf.Variable(self._initial[name], trainable=False) if several else variable
            for name, variable in self.by_name.items()
        }

    def _make(self, info: VariableInfo) -> Any:
        initial = self._initial[info.name]
        is_number = initial.dtype.is_floating or initial.dtype.is_integer
        aggregation = info.aggregation
        if aggregation is _Aggregation.NONE:
            aggregation = _Aggregation.SUM if is_number else _Aggregation.ONLY_FIRST_REPLICA
        return tf.Variable(
            initial,
            trainable=False,
            name=info.name,
            synchronization=tf.VariableSynchronization.ON_READ,
            aggregation=aggregation,
        )

    def reset(self) -> None:
        """Set every variable to its initial value."""
        for name, variable in self.by_name.items():
            first, *others = self._strategy.experimental_local_results(variable)
            first.assign(self._initial[name])
            for other in others:
                # A sum over replicas must count the initial value once.
                is_sum = variable.aggregation is _Aggregation.SUM
                other.assign(tf.zeros_like(self._initial[name]) if is_sum else self._initial[name])

    def join(self) -> None:
        """Set `joined` to the values over all replicas."""
        for name, variable in self.by_name.items():
            if self.joined[name] is not variable:
                self.joined[name].assign(variable.read_value())

"""Variables that no checkpoint holds: the sums of metrics, which restart with each run."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tpudata.estimator.state.blueprint import Blueprint, VariableInfo

_Aggregation = tf.VariableAggregation


class LocalVariables:
    """Variables that belong to one run and are set back before it.

    Each replica adds to its own; together they are the sum of all, unless the variable was made to be joined in another way.

    Args:
        blueprint: of the function that makes them.
        infos: which of its variables.
        strategy: its replicas have one each.
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
        """Give every variable its first value again."""
        for name, variable in self.by_name.items():
            first, *others = self._strategy.experimental_local_results(variable)
            first.assign(self._initial[name])
            for other in others:
                # A sum over replicas must count its first value once.
                is_sum = variable.aggregation is _Aggregation.SUM
                other.assign(tf.zeros_like(self._initial[name]) if is_sum else self._initial[name])

    def join(self) -> None:
        """Bring `joined` to what the replicas have."""
        for name, variable in self.by_name.items():
            if self.joined[name] is not variable:
                self.joined[name].assign(variable.read_value())

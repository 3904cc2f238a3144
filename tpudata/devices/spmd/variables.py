"""Variables on the devices, next to their copies on the host.

Steps change the copies on the devices; checkpoints, hooks and scaffolds read and write `tf.Variable`s on the host. Values travel
when the other side asks for them.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
import tensorflow as tf
from jax.sharding import Mesh

from tpudata.devices.spmd.mesh import first_copy, local_devices, local_parts, replicated, split, wait
from tpudata.devices.spmd.programs import Layout

_Aggregation = tf.VariableAggregation


class DeviceVariables:
    """Variables with one value for all replicas, and a copy of it on each device.

    Attributes:
        mesh: the devices.

    Args:
        mesh: as the attribute.
        variables: the `tf.Variable`s by name; more may be added to it later.
    """

    def __init__(self, mesh: Mesh, variables: Mapping[str, Any]) -> None:
        self.mesh = mesh
        self._variables = variables
        self._arrays: dict[str, jax.Array] = {}
        # Variables whose value on the host is out of date.
        self._newer: set[str] = set()
        # Names and arrays of the last step's results, which the next one mostly takes as they are: 1.2 ms less for 600 variables.
        self._results: tuple[Sequence[str], tuple[jax.Array, ...]] = (), ()
        self._in_results: frozenset[str] = frozenset()

    def arrays(self, names: Sequence[str]) -> tuple[jax.Array, ...]:
        """Return the arrays of variables; those that the host has written to are transferred first."""
        if names is self._results[0]:
            return self._results[1]
        if not self._in_results.isdisjoint(names):
            self._take_results()
        for name in names:
            if name not in self._arrays:
                self._arrays[name] = self._put(self._variables[name])
        return tuple(self._arrays[name] for name in names)

    def replace(self, names: Sequence[str], arrays: Sequence[jax.Array]) -> None:
        """Set the values of variables to results of a step."""
        if names is not self._results[0]:
            self._take_results()
            self._in_results = frozenset(names)
        self._results = names, tuple(arrays)

    def _take_results(self) -> None:
        """Take the last step's results as the values of their variables."""
        names, arrays = self._results
        self._results, self._in_results = ((), ()), frozenset()
        self._arrays.update(zip(names, arrays, strict=True))
        self._newer.update(names)

    def to_host(self, names: Iterable[str]) -> None:
        """Update the values of variables on the host."""
        self._take_results()
        stale = [name for name in names if name in self._newer]
        with jax.enable_x64(True):
            values = self._get(stale)
        for name, value in zip(stale, values, strict=True):
            self._variables[name].assign(value)
        self._newer.difference_update(stale)

    def changed_on_host(self, names: Iterable[str]) -> None:
        """Note that the host has written to variables, after `to_host` of them."""
        self._take_results()
        for name in names:
            self._arrays.pop(name, None)
            self._newer.discard(name)

    def _put(self, variable: Any) -> jax.Array:
        with jax.enable_x64(True):
            return replicated(self.mesh, variable.numpy())

    def _get(self, names: Sequence[str]) -> list[Any]:
        values: list[Any] = jax.device_get([first_copy(self._arrays[name]) for name in names])
        return values


class ReplicaVariables(DeviceVariables):
    """Variables with a value of each replica, such as the sums of metrics.

    On the host, a variable has the values of this process's replicas joined as its aggregation says: their sum, mean, or else the
    first one. The arguments are those of DeviceVariables.
    """

    def _put(self, variable: Any) -> jax.Array:
        value = variable.numpy()
        # A sum over replicas must count the value on the host once.
        others = np.zeros_like(value) if variable.aggregation is _Aggregation.SUM else value
        with jax.enable_x64(True):
            return split(self.mesh, [value, *[others] * (len(local_devices(self.mesh)) - 1)])

    def _get(self, names: Sequence[str]) -> list[Any]:
        return [self._join(self._variables[name].aggregation, local_parts(self._arrays[name])) for name in names]

    @staticmethod
    def _join(aggregation: Any, parts: list[Any]) -> Any:
        if aggregation is _Aggregation.SUM:
            return np.sum(parts, axis=0, dtype=parts[0].dtype)
        return np.mean(parts, axis=0, dtype=parts[0].dtype) if aggregation is _Aggregation.MEAN else parts[0]


class DeviceState:
    """The variables of a step on the devices.

    Attributes:
        mesh: the devices.
        variables: all variables by name.
        own_names: names of those with a value of each replica.
        shared: the variables with one value for all replicas.
        own: those with a value of each replica.

    Args:
        shared: as the attribute.
        variables: these variables by name.
        own: variables with a value of each replica, by name.
    """

    def __init__(self, shared: DeviceVariables, variables: Mapping[str, Any], own: Mapping[str, Any]) -> None:
        self.mesh = shared.mesh
        self.variables = {**variables, **own}
        self.own_names = frozenset(own)
        self.own = ReplicaVariables(shared.mesh, own)
        self.shared = shared

    def run(self, layout: Layout, program: Callable[..., tuple[Any, ...]]) -> tuple[Any, ...]:
        """Run a program that takes and returns the arrays of its layout; return its other results.

        Args:
            layout: layout of the program's variables.
            program: function of the arrays of the layout's three groups that returns those of the first and the third group, and
                other results.
        """
        shared, own = self.shared, self.own
        arrays = shared.arrays(layout.written), shared.arrays(layout.read), own.arrays(layout.own)
        written, owned, *results = program(*arrays)
        shared.replace(layout.written, written)
        own.replace(layout.own, owned)
        wait(self.mesh, results, owned, written)
        return tuple(results)

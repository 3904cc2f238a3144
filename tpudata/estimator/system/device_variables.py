"""Values of `tf.Variable`s on devices, between the calls of functions that use them."""

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding

from tpudata.estimator.system.device_function import WHOLE, put_whole


class DeviceVariables:
    """Variables whose values are on devices.

    From the first function that uses a variable to the next `sync`, the value on the devices counts, and from there to the next
    function the variable's own.
    """

    def __init__(self) -> None:
        # By handle: the variable and its value. A variable has the same handle as long as it lives.
        self._held: dict[int, tuple[Any, jax.Array]] = {}
        self._changed: set[int] = set()

    def values(self, variables: Mapping[str, Any], mesh: Mesh) -> dict[str, jax.Array]:
        """Return the values of variables on each device of a mesh, by name."""
        return {name: self._value(variable, mesh) for name, variable in variables.items()}

    def update(self, variables: Mapping[str, Any], values: Mapping[str, jax.Array]) -> None:
        """Take new values of variables, by name."""
        for name, value in values.items():
            key = id(variables[name].handle)
            self._held[key] = (variables[name], value)
            self._changed.add(key)

    def sync(self) -> None:
        """Assign the new values to the variables, and free the devices' memory."""
        held = self._held
        for key in self._changed:
            variable, value = held[key]
            if not value.is_deleted():  # As after an error while a function ran.
                variable.assign(np.asarray(value.addressable_data(0)))
        self._held, self._changed = {}, set()

    def _value(self, variable: Any, mesh: Mesh) -> jax.Array:
        key = id(variable.handle)
        sharding = NamedSharding(mesh, WHOLE)
        if key not in self._held:
            self._held[key] = (variable, put_whole(variable.numpy(), mesh))
        value = self._held[key][1]
        if not value.sharding.is_equivalent_to(sharding, value.ndim):
            # From all devices to one, or back.
            value = jax.device_put(value.addressable_data(0), sharding)
            self._held[key] = (variable, value)
        return value

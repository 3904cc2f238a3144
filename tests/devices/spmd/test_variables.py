"""Variables move between host and devices when the other side needs their values."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
import tensorflow as tf

from tpudata.devices.spmd.mesh import AXIS, make_mesh, replicate, split_rows
from tpudata.devices.spmd.programs import Layout
from tpudata.devices.spmd.variables import DeviceState, DeviceVariables, ReplicaVariables

REPLICAS = 4
MESH = make_mesh(jax.devices()[:REPLICAS])
SUM, MEAN, FIRST = (
    tf.VariableAggregation.SUM,
    tf.VariableAggregation.MEAN,
    tf.VariableAggregation.ONLY_FIRST_REPLICA,
)


@pytest.fixture
def variables() -> dict[str, Any]:
    return {"a": tf.Variable([1.0, 2.0]), "b": tf.Variable(2**40, dtype=tf.int64)}


def value(array: Any) -> Any:
    return np.asarray(array).tolist()


def test_every_device_gets_the_hosts_value(variables: dict[str, Any]) -> None:
    a, b = DeviceVariables(MESH, variables).get_arrays(["a", "b"])
    assert value(b) == 2**40
    assert [value(shard.data) for shard in a.addressable_shards] == [[1.0, 2.0]] * REPLICAS


def test_to_host_copies_only_newer_values(variables: dict[str, Any]) -> None:
    devices = DeviceVariables(MESH, variables)
    devices.get_arrays(["a"])
    devices.replace(["a"], [replicate(MESH, np.array([5, 6], np.float32))])
    assert value(variables["a"]) == [1, 2]
    devices.copy_to_host(["a", "b"])
    assert value(variables["a"]) == [5, 6]
    variables["a"].assign([7.0, 8.0])
    devices.copy_to_host(["a"])  # Nothing is newer on the devices.
    assert value(variables["a"]) == [7, 8]


def test_arrays_follow_changes_that_the_host_announced(variables: dict[str, Any]) -> None:
    devices = DeviceVariables(MESH, variables)
    devices.get_arrays(["a"])
    variables["a"].assign([7.0, 8.0])
    assert value(devices.get_arrays(["a"])[0]) == [1, 2]
    devices.mark_changed_on_host(["a", "b"])
    assert value(devices.get_arrays(["a"])[0]) == [7, 8]


def test_donating_arrays_changes_no_host_variable(variables: dict[str, Any]) -> None:
    devices = DeviceVariables(MESH, variables)
    add = jax.jit(lambda x: x + 1, donate_argnums=0)
    add(*devices.get_arrays(["a"]))
    assert value(variables["a"]) == [1, 2]


@pytest.mark.parametrize(("aggregation", "expected"), [(SUM, 10 + 6), (MEAN, 10 + 1.5), (FIRST, 10)])
def test_replica_values_are_joined_by_their_aggregation(aggregation: Any, expected: float) -> None:
    own = {"sum": tf.Variable(10.0, aggregation=aggregation)}
    replicas = ReplicaVariables(MESH, own)
    (array,) = replicas.get_arrays(["sum"])
    steps = split_rows(MESH, [np.float32(number) for number in range(REPLICAS)])
    replicas.replace(["sum"], [array + steps])
    replicas.copy_to_host(["sum"])
    assert value(own["sum"]) == expected
    # The joined value goes on as it is: a sum is counted once.
    replicas.mark_changed_on_host(["sum"])
    replicas.replace(["sum"], replicas.get_arrays(["sum"]))
    replicas.copy_to_host(["sum"])
    assert value(own["sum"]) == expected


def test_a_state_runs_programs_on_its_three_groups_of_variables(variables: dict[str, Any]) -> None:
    own = {"own": tf.Variable(1.0, aggregation=SUM)}
    shared = DeviceVariables(MESH, variables)
    state = DeviceState(shared, variables, own)

    def program(written: Any, read: Any, owned: Any) -> Any:
        return [written[0] * 2], [owned[0] + 1], (read[0], "result")

    results = state.run(Layout(("a",), ("b",), ("own",), frozenset()), program)
    assert (value(results[0]), results[1]) == (2**40, "result")
    shared.copy_to_host(["a"])
    state.per_replica.copy_to_host(["own"])
    assert value(variables["a"]) == [2, 4]
    assert value(own["own"]) == 1 + REPLICAS
    assert state.per_replica_names == {"own"}


def test_a_state_waits_for_all_cpu_devices(variables: dict[str, Any]) -> None:
    shared = DeviceVariables(MESH, variables)

    def multiply(a: Any) -> Any:
        """Return early values and, on the last device, one that takes a while."""
        steps = jax.numpy.where(jax.lax.axis_index(AXIS) == REPLICAS - 1, 500, 0)
        matrix = jax.lax.fori_loop(
            0, steps, lambda _, matrix: jax.numpy.tanh(matrix @ matrix), jax.numpy.ones([200, 200])
        )
        return a + 1, matrix

    everywhere, rows = jax.sharding.PartitionSpec(), jax.sharding.PartitionSpec(AXIS)
    mapped = jax.shard_map(multiply, mesh=MESH, in_specs=everywhere, out_specs=(everywhere, rows), check_vma=False)
    compiled = jax.jit(mapped)

    def program(written: Any, read: Any, owned: Any) -> Any:
        del read, owned
        return [written[0]], [], compiled(written[0])

    state = DeviceState(shared, variables, {})
    for _ in range(2):  # The first call compiles.
        early, late = state.run(Layout(("a",), (), (), frozenset()), program)
        assert all(shard.data.is_ready() for array in (early, late) for shard in array.addressable_shards)

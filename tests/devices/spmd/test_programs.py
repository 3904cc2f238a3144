"""Loops of steps on several devices: their ends, their results, and the replica whose values variables keep."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
import tensorflow as tf

from tests.estimator.programs import v1
from tpudata.devices.graphs.collectives import lower_collectives
from tpudata.devices.spmd.lowering import ReplicaProgram, lower
from tpudata.devices.spmd.mesh import make_mesh, replicate, split_rows
from tpudata.devices.spmd.programs import Layout, LoopOutput, compile_call, compile_loop

REPLICAS = 4
CAPACITY = 5
MESH = make_mesh(jax.devices()[:REPLICAS])
ROWS = np.arange(CAPACITY * REPLICAS, dtype=np.float32).reshape(CAPACITY, REPLICAS)
NUMBER, SCALAR = tf.TensorSpec([], tf.int32), tf.TensorSpec([], tf.float32)


def program_of(variables: dict[str, Any]) -> ReplicaProgram:
    """Return a step that writes its row into all variables but one, and whose loss is the row times that one."""

    def function(replica: Any, row: Any) -> list[Any]:
        for name, variable in variables.items():
            if name == "global_step":
                variable.assign_add(1)
            elif name != "factor":
                variable.assign(tf.cast(row, variable.dtype))
        return [row * variables["factor"], tf.stack([replica, 7]), -row]

    return lower(function, [NUMBER, SCALAR], variables)


class Loop:
    """A loop of up to five steps on four devices, or a single step."""

    def __init__(self, capacity: int | None = CAPACITY) -> None:
        initial = {"global_step": 10, "factor": 2.0, "differs": 0.5, "flag": False, "own": 1.0}
        dtypes = {"global_step": tf.int64, "flag": tf.bool}
        variables = {name: tf.Variable(value, dtype=dtypes.get(name, tf.float32)) for name, value in initial.items()}
        program = program_of(variables)
        self.layout = Layout.make(program, {"own"}, {"differs", "flag", "own", "elsewhere"})
        self._compiled = compile_loop(program, self.layout, MESH, capacity, ["differs", "factor"], 1)
        self._variables = variables
        self._capacity = capacity

    def __call__(self, rows: Any, first: int, count: int, goes_on: bool = True) -> tuple[dict[str, Any], LoopOutput]:
        """Return the variables after the steps, and the output."""
        of = {name: variable.numpy() for name, variable in self._variables.items()}
        with jax.enable_x64(True):
            sharding = jax.sharding.NamedSharding(MESH, jax.sharding.PartitionSpec(None, "replicas"))
            written, own, output = self._compiled(
                tuple(replicate(MESH, of[name]) for name in self.layout.written),
                tuple(replicate(MESH, of[name]) for name in self.layout.read),
                tuple(split_rows(MESH, [of[name]] * REPLICAS) for name in self.layout.per_replica),
                None if self._capacity is None else np.asarray(goes_on),
                np.asarray([first, count], np.int32),
                (jax.device_put(rows, sharding),),
                (),
            )
            names = (*self.layout.written, *self.layout.per_replica)
            values = dict(zip(names, map(np.asarray, (*written, *own)), strict=True))
            return values, jax.tree.map(np.asarray, output)


def test_a_loop_runs_the_requested_steps_of_a_stack() -> None:
    loop = Loop()
    assert sorted(loop.layout.written) == ["differs", "flag", "global_step"]
    assert (loop.layout.read, loop.layout.per_replica) == (("factor",), ("own",))
    assert loop.layout.diverging == {"differs", "flag"}
    values, output = loop(ROWS, 1, 3)
    assert output.goes_on
    steps, losses = output.read_report()
    assert steps.tolist() == [11, 12, 13]
    assert losses.tolist() == [*(2 * ROWS[1:4].mean(1))]  # The mean of the replicas' losses.
    assert output.fetched[0].tolist() == [[replica, 7] for replica in range(REPLICAS)]
    assert output.step_values[0][:3].tolist() == (-ROWS[1:4]).tolist()
    assert np.asarray(output.finite).tolist() == [True, True]
    assert values["global_step"] == 13
    assert values["differs"] == ROWS[3, 0]  # The first replica's.
    assert values["flag"]
    assert values["own"].tolist() == ROWS[3].tolist()  # Each replica's.


def test_a_single_step_equals_a_loop_of_one() -> None:
    values, output = Loop(capacity=None)(ROWS, 2, 1)
    looped, expected = Loop()(ROWS, 2, 1)
    assert {name: value.tolist() for name, value in values.items()} == {
        name: value.tolist() for name, value in looped.items()
    }
    assert (
        [row.tolist() for row in output.read_report()]
        == [row.tolist() for row in expected.read_report()]
        == [[11], [2 * ROWS[2].mean()]]
    )
    assert output.step_values[0].tolist() == expected.step_values[0][:1].tolist()
    assert output.fetched[0].tolist() == expected.fetched[0].tolist()


def test_a_nan_loss_on_any_replica_ends_a_loop() -> None:
    rows = ROWS.copy()
    rows[2, 3] = np.nan
    values, output = Loop()(rows, 0, 5)
    steps, losses = output.read_report()
    assert steps.tolist() == [11, 12, 13]
    assert not output.goes_on
    assert values["global_step"] == 13
    assert np.isnan(losses[2])
    rows[2] = np.inf
    assert np.asarray(Loop()(rows, 0, 3)[1].finite).tolist() == [False, True]


def test_a_loop_after_an_ended_one_changes_nothing() -> None:
    values, output = Loop()(ROWS, 0, 5, goes_on=False)
    assert not output.read_report()[0].size
    assert not output.goes_on
    assert values["global_step"] == 10
    assert values["own"].tolist() == [1.0] * REPLICAS


def test_a_call_returns_the_results_of_all_replicas() -> None:
    total = tf.Variable(0.0)
    with tf.Graph().as_default() as graph:
        tf.identity(v1.tpu.cross_replica_sum(v1.placeholder(tf.float32, [], name="given")), name="sum")
    traced = graph.as_graph_def()
    nodes = [node for node in traced.node if node.op != "Placeholder"]
    del traced.node[:]
    traced.node.extend(nodes)
    graph_def = lower_collectives(traced, REPLICAS)

    def function(replica: Any, row: Any, factor: Any) -> list[Any]:
        (summed,) = tf.import_graph_def(graph_def, {"given:0": row}, ["sum:0"])
        total.assign(summed)
        return [factor * tf.cast(replica, tf.float32), summed]

    program = lower(function, [NUMBER, SCALAR, SCALAR], {"total": total})
    layout = Layout.make(program, (), ())
    with jax.enable_x64(True):
        run = compile_call(program, layout, MESH)
        written, _, results = run((replicate(MESH, np.float32(0)),), (), (), (ROWS[:1],), (np.float32(3),))
    assert np.asarray(results[0]).tolist() == [0, 3, 6, 9]
    assert np.asarray(results[1]).tolist() == [6] * REPLICAS
    assert float(written[0]) == 6


@pytest.mark.parametrize("replicas", [1, REPLICAS])
def test_only_several_replicas_exchange_values_that_differ(replicas: int) -> None:
    total = tf.Variable(0.0)

    def function(replica: Any, row: Any) -> list[Any]:
        del replica
        total.assign(row)
        return []

    mesh = make_mesh(jax.devices()[:replicas])
    program = lower(function, [NUMBER, SCALAR], {"total": total})
    run = compile_call(program, Layout.make(program, (), {"total"}), mesh)
    arguments = ((replicate(mesh, np.float32(0)),), (), (), (ROWS[1:2, :replicas],), ())
    assert ("all_reduce" in jax.jit(run).lower(*arguments).as_text()) == (replicas > 1)
    assert float(run(*arguments)[0][0]) == ROWS[1, 0]

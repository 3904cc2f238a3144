"""Rehearsal of the variables: check that they can be created before the first step."""

import tensorflow as tf

from tpudata.devices.graphs.graph_walk import walk_graph
from tpudata.estimator.api.findings import Report
from tpudata.estimator.state.blueprint import Blueprint
from tpudata.estimator.tpu_check.operations import find_code_line


def check_variables(blueprint: Blueprint, report: Report) -> bool:
    """Report variables that cannot be made before the first step; return whether there are none."""
    batch = {placeholder.op for placeholder in tf.nest.flatten(blueprint.arguments) if placeholder is not None}
    can_make_all = True
    for info in blueprint.variables:
        initial = blueprint.graph.get_tensor_by_name(info.initial)
        if _find_ancestors(initial.op) & batch:
            can_make_all = False
            report(
                find_code_line(initial.op),
                f"the initial value of the variable {info.name!r} depends on the batch, and variables are made before the first "
                "one",
                "use an initializer that needs no batch",
            )
        if not initial.shape.is_fully_defined():
            can_make_all = False
            report(
                find_code_line(initial.op),
                f"the variable {info.name!r} has the shape {initial.shape}",
                "use a static shape",
            )
    return can_make_all


def _find_ancestors(operation: tf.Operation) -> set[tf.Operation]:
    return {*walk_graph([operation], lambda ancestor: [tensor.op for tensor in ancestor.inputs])}

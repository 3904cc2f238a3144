"""Rehearsal of the variables: check that they can be created before the first step."""

from typing import Any

import tensorflow as tf

from tpudata.devices.graphs.graph_walk import reached
from tpudata.estimator.api.findings import Find
from tpudata.estimator.state.blueprint import Blueprint
from tpudata.estimator.tpu_check.operations import place_of


def check_variables(blueprint: Blueprint, find: Find) -> bool:
    """Check the initial values of the variables; return whether all variables can be made."""
    batch = {item.op for item in tf.nest.flatten(blueprint.arguments) if item is not None}
    whole = True
    for info in blueprint.variables:
        initial = blueprint.graph.get_tensor_by_name(info.initial)
        if _ancestors(initial.op) & batch:
            whole = False
            find(
                place_of(initial.op),
                f"the initial value of the variable {info.name!r} depends on the batch, and variables are made before the first "
                "one",
                "use an initializer that needs no batch",
            )
        if not initial.shape.is_fully_defined():
            whole = False
            find(
                place_of(initial.op),
                f"the variable {info.name!r} has the shape {initial.shape}",
                "use a static shape",
            )
    return whole


def _ancestors(operation: Any) -> set[Any]:
    return {*reached([operation], lambda item: [tensor.op for tensor in item.inputs])}

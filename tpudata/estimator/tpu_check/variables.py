"""Rehearsal of the variables: whether they can be created before the first step."""

from typing import Any

import tensorflow as tf

from tpudata.estimator.api.findings import Find
from tpudata.estimator.graph.graph_walk import reached
from tpudata.estimator.state.blueprint import Blueprint
from tpudata.estimator.tpu_check.operations import place_of


def look_at_variables(blueprint: Blueprint, find: Find) -> bool:
    """Look at how the variables start; returns whether all of them can be made."""
    batch = {item.op for item in tf.nest.flatten(blueprint.arguments) if item is not None}
    whole = True
    for info in blueprint.variables:
        initial = blueprint.graph.get_tensor_by_name(info.initial)
        if _ancestors(initial.op) & batch:
            whole = False
            find(
                place_of(initial.op),
                f"the first value of the variable {info.name!r} is computed from the batch, and variables are made before",
                "give it an initializer that needs no batch",
            )
        if not initial.shape.is_fully_defined():
            whole = False
            find(
                place_of(initial.op),
                f"the variable {info.name!r} has the shape {initial.shape}",
                "give it a static shape",
            )
    return whole


def _ancestors(operation: Any) -> set[Any]:
    return {*reached([operation], lambda item: [tensor.op for tensor in item.inputs])}

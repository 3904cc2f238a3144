"""A step of a record or a batch on its way to the model, and several of them as one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import tensorflow as tf

from tpudata.input.dataset_ops import without_autograph
from tpudata.tensor_types import Element

# Tensors that accompany an element but are not features: `seed`, `weights` of evaluation, the weight and the moves of records.
Extras: TypeAlias = "dict[str, tf.Tensor]"
# Function from an element and its extras to the changed ones; the functions `make_..._step` make them. Before the fields are fed,
# the element is the dict of their columns.
Step: TypeAlias = "Callable[[Element, Extras], tuple[Element, Extras]]"


def fold(steps: Sequence[Step]) -> Step:
    """Return one step that runs several in order. AutoGraph converts the steps that are not `without_autograph`."""

    def fold_steps(element: Element, extras: Extras) -> tuple[Element, Extras]:
        for step in steps:
            element, extras = step(element, extras)
        return element, extras

    return fold_steps


def fold_to_element(steps: Sequence[Step]) -> Callable[[Element, Extras], Element]:
    """Return a function that runs several steps without AutoGraph, and returns the element without its extras."""
    return without_autograph(lambda element, extras: fold(steps)(element, extras)[0])

"""A step of a record or a batch on its way to the model, and several of them as one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import tensorflow as tf

from tpudata.input.dataset_ops import as_written

# Tensors that travel with an element but are not features: `seed`, `weights` of evaluation, the weight and the moves of records.
Extras: TypeAlias = "dict[str, tf.Tensor]"
# Returns an element and its extras, changed.
Step: TypeAlias = "Callable[[Any, Extras], tuple[Any, Extras]]"


def fold(steps: Sequence[Step]) -> Step:
    """Return one step that takes several, in their order. AutoGraph converts those that are not `as_written`."""

    def fold_steps(element: Any, extras: Extras) -> tuple[Any, Extras]:
        for step in steps:
            element, extras = step(element, extras)
        return element, extras

    return fold_steps


def elements(steps: Sequence[Step]) -> Callable[[Any, Extras], Any]:
    """Return a function that takes several steps, none of which AutoGraph converts, and returns the element alone."""
    return as_written(lambda element, extras: fold(steps)(element, extras)[0])

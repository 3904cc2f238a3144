"""A step of a record or a batch on its way to the model, and several of them as one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import tensorflow as tf

from tpudata.input.dataset_ops import without_autograph

# Tensors that accompany an element but are not features: `seed`, `weights` of evaluation, the weight and the moves of records.
Extras: TypeAlias = "dict[str, tf.Tensor]"
# Function from an element and its extras to the changed ones.
Step: TypeAlias = "Callable[[Any, Extras], tuple[Any, Extras]]"


def fold(steps: Sequence[Step]) -> Step:
    """Return one step that runs several in order. AutoGraph converts those that are not `without_autograph`."""

    def fold_steps(element: Any, extras: Extras) -> tuple[Any, Extras]:
        for step in steps:
            element, extras = step(element, extras)
        return element, extras

    return fold_steps


def chain_steps(steps: Sequence[Step]) -> Callable[[Any, Extras], Any]:
    """Return a function that runs several steps without AutoGraph and returns only the element."""
    return without_autograph(lambda element, extras: fold(steps)(element, extras)[0])

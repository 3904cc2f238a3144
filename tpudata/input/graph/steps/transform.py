"""The user's transform of records, batch_transform of batches, and parse of stored records."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tpudata.console.tables import counted
from tpudata.errors import FeatureError, UsageError
from tpudata.input.dataset_ops import as_written, to_int32
from tpudata.input.decode.user_parse import parse_rows
from tpudata.input.elements import check_static, map_named, named_leaves
from tpudata.input.graph.steps.step import Extras, Step
from tpudata.input.options.options import check_arguments, takes_seed


def parse_records(parse: Callable[..., Any]) -> Step:
    """Return the step from whole records of a batch to what the user's parse makes of them. AutoGraph converts it."""

    def parse_batch(columns: dict[str, tf.Tensor], extras: Extras) -> tuple[Any, Extras]:
        (serialized,) = columns.values()
        return parse_rows(parse, serialized), extras

    return parse_batch


def transform_record(function: Callable[..., Any]) -> Step:
    """Return the step that calls the user's transform with a record. AutoGraph converts it."""
    is_seeded = takes_seed(function)

    def transform(element: Any, extras: Extras) -> tuple[Any, Extras]:
        arguments = element if isinstance(element, tuple) else (element,)
        seed = {"seed": extras["seed"]} if is_seeded else {}
        as_written(_check_call)("transform", function, arguments, seed)
        return as_written(_to_tensors)("transform", function(*arguments, **seed)), extras

    return transform


def transform_batch(function: Callable[..., Any], batch_size: int, *, has_labels: bool, keeps_rows: bool) -> Step:
    """Return the step that calls the user's batch_transform.

    Args:
        function: the function.
        batch_size: rows of the batch.
        has_labels: whether there are labels, which it has to return.
        keeps_rows: whether it has to return the rows, as these have weights.
    """
    is_seeded = takes_seed(function)
    name = "batch_transform"

    @as_written
    def transform(element: Any, extras: Extras) -> tuple[Any, Extras]:
        arguments = element if isinstance(element, tuple) else (element,)
        # One seed for a batch: that of its first row, which no other batch has.
        seed = {"seed": extras["seed"][0]} if is_seeded else {}
        _check_call(name, function, arguments, seed)
        # AutoGraph converts only the user's function, which may branch on tensors.
        result = _to_tensors(name, tf.function(function)(*arguments, **seed))
        check_result(name, result, has_labels=has_labels)
        for leaf_name, leaf in named_leaves(result, f"the result of {name}") if keeps_rows else ():
            if leaf.shape.rank == 0 or leaf.shape[0] != batch_size:
                raise FeatureError(
                    f"{leaf_name} has the shape {leaf.shape} (expected {counted(batch_size, 'row')}). Keep the rows: their"
                    " weights belong to them, which mark the padding of evaluation."
                )
        return result, extras

    return transform


def check_result(name: str, result: Any, *, has_labels: bool) -> None:
    """Check the result of a user's function, or its `element_spec`.

    Args:
        name: name of the function.
        result: the result.
        has_labels: whether it has to have labels.

    Raises:
        FeatureError: a shape is not static.
        UsageError: the function dropped the labels.
    """
    check_static(result, f"the result of {name}")
    if has_labels and not (isinstance(result, tuple) and len(result) == 2):
        raise UsageError(f"{name} returned no (features, labels). End it with `return features, labels`.")


def _check_call(name: str, function: Callable[..., Any], arguments: tuple[Any, ...], seed: dict[str, Any]) -> None:
    """Check that a function takes an element, and the seed if there is one."""
    names = ("features", "labels")[: len(arguments)] + ("more",) * (len(arguments) - 2)
    check_arguments(name, function, names, tuple(seed))


def _to_tensors(name: str, result: Any) -> Any:
    """Return the result of a user's function as tensors; ragged and sparse ones stay, to be rejected by name."""
    if result is None or isinstance(result, list):
        kind = "None" if result is None else "a list"
        which = "" if result is None and name == "transform" else ", which is a tuple"
        raise UsageError(f"{name} returned {kind}. End it with `return features, labels`{which}.")

    def tensor(leaf_name: str, value: Any) -> Any:
        return to_int32(leaf_name, value if tf.is_tensor(value) else tf.convert_to_tensor(value))

    return map_named(tensor, result, f"the result of {name}")

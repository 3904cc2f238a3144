"""The user's transform of records, batch_transform of batches, and parse of stored records."""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

from tpudata.console.tables import count_text
from tpudata.errors import FeatureError, UsageError
from tpudata.input.dataset_ops import cast_to_int32, without_autograph
from tpudata.input.decode.user_parse import parse_rows
from tpudata.input.elements import check_static_shapes, map_named, name_leaves
from tpudata.input.graph.steps.step import Extras, Step
from tpudata.input.options.options import check_arguments, name_parts, takes_seed
from tpudata.tensor_types import Element, Tensors


def make_parse_step(parse: Callable[..., Element]) -> Step:
    """Return the step that parses the stored records of a batch with the user's function, which AutoGraph converts."""

    def parse_batch(columns: dict[str, tf.Tensor], extras: Extras) -> tuple[Element, Extras]:
        # With `parse`, the whole record is the only field.
        (serialized,) = columns.values()
        return parse_rows(parse, serialized), extras

    return parse_batch


def make_transform_step(function: Callable[..., Element]) -> Step:
    """Return the step that calls the user's transform, which AutoGraph converts, with a record."""
    is_seeded = takes_seed(function)

    def transform(element: Element, extras: Extras) -> tuple[Element, Extras]:
        """Call the user's function with features, labels if there are any, and the record's seed if it takes one."""
        arguments = element if isinstance(element, tuple) else (element,)
        seed = {"seed": extras["seed"]} if is_seeded else {}
        # AutoGraph converts this function and the user's, which may branch on tensors, but not the checks.
        without_autograph(_check_call)("transform", function, arguments, seed)
        return without_autograph(_convert_result)("transform", function(*arguments, **seed)), extras

    return transform


def make_batch_transform_step(
    function: Callable[..., Element], batch_size: int, *, has_labels: bool, keeps_rows: bool
) -> Step:
    """Return the step that calls the user's batch_transform.

    Args:
        function: the user's batch_transform.
        batch_size: rows of the batch.
        has_labels: whether the batch has labels; the function must then return labels.
        keeps_rows: whether the function must return as many rows as it gets, because they have weights.
    """
    is_seeded = takes_seed(function)
    name = "batch_transform"

    @without_autograph
    def call_transform(element: Element, extras: Extras) -> tuple[Element, Extras]:
        """Call the user's function with features, labels if there are any, and a seed if it takes one; check its result."""
        arguments = element if isinstance(element, tuple) else (element,)
        # The seed of the first row, which no other batch has.
        seed = {"seed": extras["seed"][0]} if is_seeded else {}
        _check_call(name, function, arguments, seed)
        # AutoGraph converts only the user's function, which may branch on tensors.
        transformed = _convert_result(name, tf.function(function)(*arguments, **seed))
        check_result(name, transformed, has_labels=has_labels)
        if keeps_rows:
            _check_rows(transformed, batch_size, f"the result of {name}")
        return transformed, extras

    return call_transform


def check_result(name: str, element: Element, *, has_labels: bool) -> None:
    """Check the result of a user's function, or its `element_spec`.

    Args:
        name: name of the function, for the message.
        element: the result.
        has_labels: whether the result must be (features, labels).

    Raises:
        FeatureError: a shape is not static.
        UsageError: the function dropped the labels.
    """
    check_static_shapes(element, f"the result of {name}")
    if has_labels and not (isinstance(element, tuple) and len(element) == 2):
        raise UsageError(f"{name} returned no (features, labels). End it with `return features, labels`.")


def _check_rows(element: Element, batch_size: int, name: str) -> None:
    """Check that each tensor of an element called `name` has `batch_size` rows; FeatureError if not."""
    for leaf_name, leaf in name_leaves(element, name):
        if leaf.shape.rank == 0 or leaf.shape[0] != batch_size:
            raise FeatureError(
                f"{leaf_name} has the shape {leaf.shape} (expected {count_text(batch_size, 'row')}). Keep all rows: each"
                " has a weight, which is 0 for the padding of an evaluation."
            )


def _check_call(
    name: str, function: Callable[..., Element], arguments: tuple[Tensors, ...], seed: dict[str, tf.Tensor]
) -> None:
    """Check that a user's function takes the parts of an element, and the seed if there is one; UsageError if not.

    Args:
        name: the option that the function was passed as.
        function: the user's function.
        arguments: the parts of an element, which are its positional arguments.
        seed: {"seed": seed}, or {} if the function takes no seed.
    """
    check_arguments(name, function, name_parts(arguments), tuple(seed))


def _convert_result(name: str, result: Element) -> Element:
    """Return the result of a user's function as tensors, with int64 as int32; a later check rejects ragged and sparse tensors.

    Raises:
        UsageError: the result is None or a list.
    """
    if result is None or isinstance(result, list):
        value, hint = ("None", "") if result is None else ("a list", ", which is a tuple")
        raise UsageError(f"{name} returned {value}. End it with `return features, labels`{hint}.")

    def convert(leaf_name: str, leaf: Tensors) -> tf.Tensor:
        return cast_to_int32(leaf_name, leaf if tf.is_tensor(leaf) else tf.convert_to_tensor(leaf))

    return map_named(convert, result, f"the result of {name}")

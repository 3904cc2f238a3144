"""`Mixture` combines several inputs, each with its share of the batches."""

from __future__ import annotations

from collections.abc import Sequence

from tpudata.checks import is_number
from tpudata.error_text.values import format_value
from tpudata.errors import UsageError
from tpudata.input.graph.pipelines.mixed_pipeline import MixedPipeline
from tpudata.input.input_fn import InputFn


class Mixture(InputFn):
    """An input_fn that mixes the records of several others by their weights.

    It is called like its inputs and keeps their guarantees: the record in each row depends only on the inputs' seeds, the step
    and the size of the global batch, for any number of hosts, and `start_step=k` costs a seek.

    A global batch of B rows is divided into equal pieces; their number is the largest divisor of B up to 16. Each piece comes
    from one input. After any number of steps each input has given its share of all pieces, to within the number of inputs: an
    input of small weight is absent from many steps, and over many steps its share is exact. Each input has its own epochs.

    Args:
        inputs: pairs of an input_fn of `make_input_fn(..., training=True)`, or a Mixture, and its weight, a number above 0. The
            weights need not add up to 1. All inputs give the same names, dtypes and shapes, and none has `Images(mix=...)` or a
            `batch_transform`: map the mixture's dataset instead.

    Raises:
        UsageError: there are no inputs; an item is not a pair; an input is for evaluation, or has `num_epochs`, `Images(mix=...)`
            or a `batch_transform`; a weight is not a number above 0; or, when called, inputs differ in names, dtypes or shapes.

    Calling the mixture, and iterating its datasets, also raises what the inputs raise.
    """

    def __init__(self, inputs: Sequence[tuple[InputFn, float]]) -> None:
        if not isinstance(inputs, Sequence):
            raise UsageError(f"Mixture: inputs is {inputs!r} (expected a list of pairs of an input_fn and its weight).")
        pairs = [_read_input(pair, index) for index, pair in enumerate(inputs)]
        if not pairs:
            raise UsageError("Mixture: there are no inputs. Pass pairs of an input_fn and its weight.")
        pipeline = MixedPipeline([input_fn.batches for input_fn, _ in pairs], [weight for _, weight in pairs])
        weighs_records = any(input_fn.weighs_records for input_fn, _ in pairs)
        has_drawn_seed = any(input_fn.has_drawn_seed for input_fn, _ in pairs)
        super().__init__(
            pipeline, training=True, is_endless=True, weighs_records=weighs_records, has_drawn_seed=has_drawn_seed
        )


def _read_input(pair: object, index: int) -> tuple[InputFn, float]:
    """Return the input_fn and the weight of an input; UsageError unless `pair` is an input_fn that can be mixed, and its weight."""
    if not isinstance(pair, tuple | list) or len(pair) != 2 or not isinstance(pair[0], InputFn):
        raise UsageError(
            f"Mixture: input {index} is {format_value(pair)} (expected an input_fn of make_input_fn, and its weight)."
        )
    input_fn, weight = pair
    if not is_number(weight) or weight <= 0:
        raise UsageError(f"Mixture: the weight of input {index} is {format_value(weight)} (expected a number above 0).")
    if not input_fn.is_endless:
        problem = "ends after num_epochs" if input_fn.training else "is for evaluation"
        raise UsageError(f"Mixture: input {index} {problem} (expected training=True, without an end). Make it anew.")
    if input_fn.mixes_rows:
        raise UsageError(
            f"Mixture: input {index} has Images(mix=...) or a batch_transform, for whole batches, and gives parts of them"
            " here. Omit it, and map the mixture's dataset."
        )
    return input_fn, float(weight)

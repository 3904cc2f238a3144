"""Options of feeding: the arguments of `make_input_fn`, checked at the call."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import operator
import os
from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np
import tensorflow as tf

from tpudata.checks import check_argument, check_flag, check_integer, check_one_of, convert_integers, is_integer
from tpudata.error_text.values import format_value
from tpudata.errors import UsageError
from tpudata.input.options.columns import FeatureOptions
from tpudata.input.options.images import Images
from tpudata.input.options.reading import Reading
from tpudata.input.options.service import DataService
from tpudata.input.options.tokens import Tokens
from tpudata.tensor_types import Element, Tensors


@dataclasses.dataclass(frozen=True)
class Options:
    """Options of feeding: the arguments of `make_input_fn`, which documents them, in groups.

    Raises:
        UsageError: an option is out of range or of the wrong type, or does not fit another one.
    """

    training: bool
    images: Images = dataclasses.field(default_factory=Images)
    tokens: Tokens = dataclasses.field(default_factory=Tokens)
    columns: FeatureOptions = dataclasses.field(default_factory=FeatureOptions)
    parse: Callable[..., Element] | None = None
    filter: Callable[..., bool | tf.Tensor] | None = None
    transform: Callable[..., Element] | None = None
    batch_transform: Callable[..., Element] | None = None
    shuffle: bool | int | None = None
    num_epochs: int | None = None
    seed: int = 0
    has_drawn_seed: bool = False
    cache: bool | str | os.PathLike[str] = False
    weights: Literal["feature", "sample_weight"] = "feature"
    service: DataService | None = None
    reading: Reading = dataclasses.field(default_factory=Reading)

    def __post_init__(self) -> None:
        check_flag("training", self.training)
        self.images.check_mode(self.training)
        _check_function("parse", self.parse, "a function of a batch of serialized records")
        # `parse` always has one argument. The arguments of the other functions depend on the labels and on the result of `parse`;
        # they are checked when the graph is made.
        if self.parse is not None:
            check_arguments("parse", self.parse, ("serialized",))
        _check_function("transform", self.transform, "a function of (features, labels)")
        _check_function("filter", self.filter, "a function")
        _check_function("batch_transform", self.batch_transform, "a function")
        check_one_of("weights", self.weights, ("feature", "sample_weight"))
        if self.weighs_records and self.tokens.names is not None:
            raise UsageError(
                f"weight={self.columns.weight!r}: names={self.tokens.names!r} has its own weights of tokens. Omit one of them."
            )
        if self.weighs_records and self.images.mix is not None:
            raise UsageError("weight: a mixed row is of two records, which have two weights. Omit it, or mix.")
        if self.weighs_records and self.is_bare and self.weights == "feature":
            raise UsageError(
                'weight: features= asks for a bare tensor, which has no place for weights. Pass weights="sample_weight" with it.'
            )
        self._check_order()
        is_valid = self.service is None or isinstance(self.service, DataService)
        check_argument("service", self.service, is_valid, 'tpudata.DataService("grpc://HOST:PORT"), or None')
        check_integer("seed", self.seed, 0, 2**32 - 1, or_none=True)
        convert_integers(self, "seed", "num_epochs")
        # "auto" is allowed: with buckets it caches nothing.
        if self.tokens.buckets is not None and self.cache not in (False, "auto"):
            raise UsageError(f"cache={self.cache!r}: batches by buckets are read without a cache. Omit one of them.")

    def _check_order(self) -> None:
        """Check `shuffle` and `num_epochs`; UsageError if they are invalid, or passed for an evaluation."""
        is_switch = self.shuffle is None or isinstance(self.shuffle, bool | np.bool_)
        is_off = is_switch and not self.shuffle
        if not self.training and not is_off:
            raise UsageError(
                f"shuffle={format_value(self.shuffle)}: evaluation takes the records in order. Omit it, or pass training=True."
            )
        expected = "True, False or the number of records to mix, an integer of 1 or more"
        check_argument("shuffle", self.shuffle, is_switch or is_integer(self.shuffle, 1), expected)
        if self.num_epochs is not None and not self.training:
            raise UsageError(
                f"num_epochs={format_value(self.num_epochs)}: evaluation is one pass over the records. Omit it, or pass"
                " training=True."
            )
        is_count = self.num_epochs is None or is_integer(self.num_epochs, 1)
        check_argument(
            "num_epochs", self.num_epochs, is_count, "None for an endless dataset, or an integer of 1 or more"
        )

    @property
    def is_bare(self) -> bool:
        """Whether features are one tensor instead of a dict."""
        return self.columns.features is not None

    @property
    def weighs_records(self) -> bool:
        """Whether records have weights."""
        return self.columns.weight is not None

    @property
    def is_endless(self) -> bool:
        """Whether the batches have no end."""
        return self.training and self.num_epochs is None

    @property
    def shuffles(self) -> bool:
        """Whether training shuffles the records."""
        return self.training and (self.shuffle is None or bool(self.shuffle))

    @property
    def shuffle_buffer(self) -> int | None:
        """Number of records that are shuffled together; None for the default."""
        if self.shuffle is None or isinstance(self.shuffle, bool | np.bool_):
            return None
        return operator.index(self.shuffle)

    @property
    def transform_takes_seed(self) -> bool:
        """Whether transform has an argument named seed."""
        return takes_seed(self.transform)

    @property
    def prepares_one_by_one(self) -> bool:
        """Whether records are prepared one by one instead of in batches."""
        return self.transform is not None or self.images.crop is not None or self.images.augment is not None

    @property
    def draws(self) -> bool:
        """Whether anything is drawn at random for a record or a batch, apart from the order."""
        return self.transform_takes_seed or takes_seed(self.batch_transform) or self.images.draws


def takes_seed(function: Callable[..., object] | None) -> bool:
    """Return whether a user's function has an argument named seed that is not bound yet; False for None."""
    if isinstance(function, functools.partial) and "seed" in function.keywords:
        return False
    try:
        return function is not None and "seed" in inspect.signature(function).parameters
    except ValueError:  # A builtin without a signature.
        return False


def name_parts(element: tuple[Tensors, ...]) -> tuple[str, ...]:
    """Return a name for each part of an element, for messages; `parse` may return more parts than features and labels."""
    return ("features", "labels")[: len(element)] + ("more",) * (len(element) - 2)


def check_arguments(
    name: str, function: Callable[..., object], positional: Sequence[str], keywords: Sequence[str] = ()
) -> None:
    """Check that a user's function takes these arguments, by its signature: a call may raise TypeErrors for other reasons.

    Args:
        name: the option that it was passed as.
        function: the user's function.
        positional: names of the positional arguments that it is called with, for the message; their number is checked.
        keywords: names of the keyword arguments that it is called with.

    Raises:
        UsageError: the function cannot be called with these arguments.
    """
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # A builtin without a signature: the call will show.
        return
    try:
        signature.bind(*positional, **dict.fromkeys(keywords))
    except TypeError as error:
        call = f"({', '.join((*positional, *(f'{keyword}={keyword}' for keyword in keywords)))})"
        takes = " ".join(str(signature).split())
        raise UsageError(f"{name} is called with {call}, and takes {takes}, {error}. Let it take {call}.") from None


def _check_function(name: str, function: object, expected: str) -> None:
    check_argument(name, function, function is None or callable(function), f"{expected}, or None")

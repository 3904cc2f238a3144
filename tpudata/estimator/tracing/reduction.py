"""Reduction of gradients over the replicas, exactly once, even if the optimizer that applies them reduces, too."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

_ReduceOp = tf.distribute.ReduceOp
Pairs = Sequence[tuple[Any, Any]]


def summed(pairs: Pairs) -> list[tuple[Any, Any]]:
    """Return (gradient, variable) pairs with each gradient summed over the replicas; None stays None."""
    given = [(gradient, _tf_variable(variable)) for gradient, variable in pairs if gradient is not None]
    context = _several_replicas()
    if context is None or not given:
        return list(pairs)

    def merge(strategy: Any, given: Any) -> Any:
        return strategy.extended.batch_reduce_to(_ReduceOp.SUM, given)

    totals = iter(context.merge_call(merge, args=(given,)))
    return [(None if gradient is None else next(totals), variable) for gradient, variable in pairs]


@contextlib.contextmanager
def reduced_once(pairs: Pairs) -> Iterator[Callable[[], list[Any]]]:
    """Keep this replica's optimizer, which sums gradients itself, from summing the gradients of `pairs` again.

    Optimizers of TensorFlow and Keras sum gradients over the replicas in a merge of the replicas, and a program's optimizer may
    call one of them. In such a merge, gradients of `pairs` are already reduced, and others, computed from them, are averaged, as
    the mean of equal values is that value.

    Args:
        pairs: result of `summed`.

    Yields:
        A function that returns the operations made so far, by this replica and by its merges with the others.
    """
    spans = _Spans(tf.compat.v1.get_default_graph())
    context = _several_replicas()
    if context is None:
        with spans.open():
            yield spans.operations
        return
    totals = [gradient for gradient, _ in pairs if gradient is not None]
    merge_call = context.merge_call
    had_its_own = "merge_call" in vars(context)

    def merge_reduced(merge_fn: Callable[..., Any], args: Any = (), kwargs: Any = None) -> Any:
        def merge(strategy: Any, *merge_args: Any, **merge_kwargs: Any) -> Any:
            with spans.open():
                return merge_fn(_Strategy(strategy, totals), *merge_args, **merge_kwargs)

        with spans.closed():  # Other replicas take their turns here.
            return merge_call(merge, args=args, kwargs=kwargs)

    # The context belongs to the trace of this replica only.
    context.merge_call = merge_reduced
    try:
        with spans.open():
            yield spans.operations
    finally:
        if had_its_own:
            context.merge_call = merge_call
        else:
            del context.merge_call


def _several_replicas() -> Any:
    """Return the context of the replica that is traced, or None if there is one replica."""
    context = tf.distribute.get_replica_context()
    return None if context is None or context.num_replicas_in_sync == 1 else context


def _tf_variable(variable: Any) -> Any:
    """Return the tf.Variable of a Keras 3 variable; a tf.Variable is returned unchanged."""
    return variable if isinstance(variable, tf.Variable) else getattr(variable, "value", variable)


class _Spans:
    """Operations that were added to a graph while this was open."""

    def __init__(self, graph: Any) -> None:
        self._graph = graph
        self._spans: list[tuple[int, int]] = []
        self._begin = 0

    def operations(self) -> list[Any]:
        """Return the operations added so far."""
        made = self._graph.get_operations()
        return [operation for begin, end in self._spans for operation in made[begin:end]]

    @contextlib.contextmanager
    def open(self) -> Iterator[None]:
        """Include what is made inside the context."""
        self._begin = self._count()
        try:
            yield
        finally:
            self._spans.append((self._begin, self._count()))

    @contextlib.contextmanager
    def closed(self) -> Iterator[None]:
        """Omit what is made inside the context."""
        self._spans.append((self._begin, self._count()))
        try:
            yield
        finally:
            self._begin = self._count()

    def _count(self) -> int:
        return len(self._graph.get_operations())


class _Strategy:
    """The strategy for a merge of the replicas, with another `extended`.

    Args:
        strategy: the real strategy.
        totals: reduced gradients of the first replica.
    """

    def __init__(self, strategy: Any, totals: Sequence[Any]) -> None:
        self._strategy = strategy
        self.extended = _Extended(strategy, totals)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._strategy, name)

    def __eq__(self, other: object) -> bool:  # A variable's assign compares its strategy.
        return other is self._strategy or other is self

    def __hash__(self) -> int:
        return hash(self._strategy)


class _Extended:
    """The strategy's `extended`, with a sum that does not add equal gradients several times."""

    def __init__(self, strategy: Any, totals: Sequence[Any]) -> None:
        self._strategy = strategy
        self._totals = totals

    def __getattr__(self, name: str) -> Any:
        return getattr(self._strategy.extended, name)

    def batch_reduce_to(self, reduce_op: Any, value_destination_pairs: Pairs, options: Any = None) -> Any:
        del reduce_op  # Optimizers sum.
        values = [value for value, _ in value_destination_pairs]
        if all(map(self._is_reduced, values)):
            return values
        return self._strategy.extended.batch_reduce_to(_ReduceOp.MEAN, value_destination_pairs, options)

    def _is_reduced(self, value: Any) -> bool:
        first = self._strategy.experimental_local_results(value)[0]
        return any(first is total for total in self._totals)

"""Private graph collections for each replica's trace, if several are traced into one graph.

A MirroredStrategy traces the model once for each replica, in threads that take turns. Each runs until it calls `merge_call`, as
optimizers do to sum gradients; when all wait there, the merging function runs once for all, in the thread that started them. Graph
collections belong to the graph, so that a replica would find the losses and update operations of the others in them. Therefore each
trace has separate collections, which are installed in the graph during its turn.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from tpudata.estimator.graph.keras_effects import KERAS_UPDATES, called_by_keras

_Keys = tf.compat.v1.GraphKeys
# A function's graph shares these lists with the graph around it, down to the one of the whole process; it copies every other
# collection. The last two contain the state of get_variable and of variable_scope, under names that TensorFlow does not publish.
_SHARED: tuple[Any, ...] = (
    _Keys.GLOBAL_VARIABLES,
    _Keys.LOCAL_VARIABLES,
    _Keys.TRAINABLE_VARIABLES,
    ("__variable_store",),
    ("__varscope",),
)
# tf.train.init_from_checkpoint merges the replicas by a function of this module.
_INIT_FROM_CHECKPOINT = "tensorflow.python.training.checkpoint_utils"


class Collections:
    """The collections of one trace.

    They are empty at first, even if the program has added to the collections outside, such as an eagerly made global step.

    Args:
        graph: the graph that is being built.
    """

    def __init__(self, graph: Any) -> None:
        self._graph = graph
        self._content: dict[Any, list[Any]] = {}
        self._begins: list[int] = []
        self._spans: list[tuple[int, int]] = []

    def operations(self) -> list[Any]:
        """Return the operations that were made while these collections were installed."""
        made = self._graph.get_operations()
        spans = [*self._spans, *((begin, len(made)) for begin in self._begins)]
        return [operation for begin, end in sorted(spans) for operation in made[begin:end]]

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Install these collections in the graph, and restore its others afterwards."""
        others = self._exchange(self._content)
        self._begin()
        try:
            yield
        finally:
            self._end()
            self._content = self._exchange(others)

    @contextlib.contextmanager
    def set_aside(self) -> Iterator[None]:
        """Take these collections out of the graph, and put them back afterwards."""
        self._content = self._exchange({})
        self._end()
        try:
            yield
        finally:
            self._begin()
            self._exchange(self._content)

    def _begin(self) -> None:
        self._begins.append(len(self._graph.get_operations()))

    def _end(self) -> None:
        self._spans.append((self._begins.pop(), len(self._graph.get_operations())))

    def _exchange(self, content: dict[Any, list[Any]]) -> dict[Any, list[Any]]:
        keys = list(dict.fromkeys([*_SHARED, *self._graph.get_all_collection_keys(), *content]))
        found = {}
        for key in keys:
            reference = self._graph.get_collection_ref(key)
            found[key] = list(reference)
            reference[:] = content.get(key, [])
        return found


@contextlib.contextmanager
def merging(collections: Collections, creator: Callable[..., Any]) -> Iterator[None]:
    """Run the merging functions of this replica with its collections, variable scope and variable creator.

    Args:
        collections: collections of the replica.
        creator: creator of its variables, as in `tf.variable_creator_scope`; optimizers make their slots while they merge.
    """
    context = tf.distribute.get_replica_context() if tf.distribute.has_strategy() else None
    if context is None:
        yield
        return
    merge_call = context.merge_call

    def merge_here(merge_fn: Callable[..., Any], args: Any = (), kwargs: Any = None) -> Any:
        if getattr(merge_fn, "__module__", None) == _INIT_FROM_CHECKPOINT:
            return None  # The variables already have initial values, from the graph that made them.
        scope = tf.compat.v1.get_variable_scope()
        is_kerass = called_by_keras()

        def merge(*merge_args: Any, **merge_kwargs: Any) -> Any:
            with (
                collections.installed(),
                tf.compat.v1.variable_scope(scope, auxiliary_name_scope=False),
                tf.variable_creator_scope(creator),
            ):
                graph = tf.compat.v1.get_default_graph()
                before = len(graph.get_operations())
                merged = merge_fn(*merge_args, **merge_kwargs)
                if is_kerass:
                    made = graph.get_operations()[before:]
                    graph.get_collection_ref(KERAS_UPDATES).extend(operation.name for operation in made)
                return merged

        with collections.set_aside():
            return merge_call(merge, args=args, kwargs=kwargs)

    # The context belongs to this trace only, and all merges go through this method of it.
    context.merge_call = merge_here
    try:
        yield
    finally:
        del context.merge_call

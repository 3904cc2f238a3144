"""Real variables in later traces of a function."""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import tensorflow as tf

from tpudata.estimator.api.errors import ModelFnValueError
from tpudata.estimator.graph.replica import Collections, merging
from tpudata.estimator.state.blueprint import VariableInfo
from tpudata.estimator.state.variable_requests import Key, Requests, counted_keys, variable_creator

_Keys = tf.compat.v1.GraphKeys


@contextlib.contextmanager
def reuse(
    variables: Mapping[Key, tuple[VariableInfo, Any]], requests: Requests, seed: int | None
) -> Iterator[Collections]:
    """Answer every request for a variable in this trace with an existing one.

    Args:
        variables: infos and real variables by key.
        requests: requests of all replicas that are traced into one graph.
        seed: seed of the graph's random ops, or None.

    Yields:
        The collections of the trace.
    """

    def answer(key: Key, create: Callable[..., Any], kwargs: Mapping[str, Any]) -> Any:
        del create, kwargs
        try:
            info, variable = variables[key]
        except KeyError:
            raise ModelFnValueError(
                f"model_fn must make the same variables in the same order at every call (got {key[0]!r}, request {key[1]} of that "
                "name, which it did not make in its first call). Make them all in each call."
            ) from None
        graph = tf.compat.v1.get_default_graph()
        members = [*info.collections, *([_Keys.TRAINABLE_VARIABLES] if info.trainable else [])]
        for collection in members:
            if not any(variable is other for other in graph.get_collection_ref(collection)):
                graph.add_to_collection(collection, variable)
        return variable

    graph = tf.compat.v1.get_default_graph()
    collections = Collections(graph)
    creator = variable_creator(answer, requests.keys())
    # Variables that optimizers make while they merge are requested once, by the first replica's optimizer.
    merging_creator = variable_creator(answer, counted_keys())
    with (
        collections.installed(),
        tf.compat.v1.name_scope(None),
        tf.variable_creator_scope(creator),
        merging(collections, merging_creator),
    ):
        if seed is not None:
            graph.seed = seed
        yield collections

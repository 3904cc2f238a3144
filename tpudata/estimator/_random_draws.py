"""Random operations of v1 code whose draws depend on the step, so that training that goes on draws what it would have drawn.

Such an operation with a seed keeps a counter in its kernel, which a restart sets back to 0. The counter after n steps is known,
though: each run of the kernel moves it on by 256 times the values drawn. The operation without state that begins at that counter
draws the same numbers. That takes an operation that is run once a step; those within loops, conditions and functions of model_fn
are left alone.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import tensorflow as tf
from tensorflow.python.ops import gen_random_ops  # Where those of tf.random and of layers come together.

_MULTIPLIER = 256
# The functions are the process's. Other threads that trace meanwhile get the original ones through those that stand in their place;
# two that replaced them at once would put back each other's.
_patching = threading.RLock()
_SCOPE = "tpudata_random"
_REPLACEMENTS = {
    "random_uniform": "StatelessRandomUniformV2",
    "random_standard_normal": "StatelessRandomNormalV2",
    "truncated_normal": "StatelessTruncatedNormalV2",
    "random_uniform_int": "StatelessRandomUniformIntV2",
}
# The kinds of the operations that are made, and of those in whose place, and under whose names, they stand.
STATEFUL_TYPES = {
    "StatelessRandomUniformV2": "RandomUniform",
    "StatelessRandomNormalV2": "RandomStandardNormal",
    "StatelessTruncatedNormalV2": "TruncatedNormal",
    "StatelessRandomUniformIntV2": "RandomUniformInt",
}


@contextlib.contextmanager
def drawn_by_step(global_step: Callable[[], Any]) -> Iterator[None]:
    """Let random operations with a seed, made in the default graph meanwhile, draw as after as many runs as there were steps.

    Args:
        global_step: returns the number of steps done.
    """
    graph = tf.compat.v1.get_default_graph()
    with tf.name_scope(_SCOPE), tf.control_dependencies(None):
        step = tf.cast(global_step(), tf.uint64)

    def place(seed: int, seed2: int, shape: Any) -> dict[str, Any]:
        with tf.name_scope(f"{_SCOPE}/"), tf.control_dependencies(None):
            drawn = tf.cast(tf.reduce_prod(tf.cast(shape, tf.int64)) * _MULTIPLIER, tf.uint64)
            counter = tf.stack([step * drawn, tf.constant(seed2 % 2**64, tf.uint64)])
            return {
                "key": tf.constant([seed % 2**64], tf.uint64),
                "counter": counter,
                "alg": tf.random.Algorithm.PHILOX.value,
            }

    def replaced(function: str, stateless: str) -> Callable[..., Any]:
        stateful = getattr(gen_random_ops, function)
        make = getattr(tf.raw_ops, stateless)

        def draw(shape: Any, *args: Any, seed: int = 0, seed2: int = 0, name: str | None = None, **kwargs: Any) -> Any:
            if not (seed or seed2) or tf.compat.v1.get_default_graph() is not graph:
                return stateful(shape, *args, seed=seed, seed2=seed2, name=name, **kwargs)
            names = ("minval", "maxval") if function == "random_uniform_int" else ("dtype",)
            arguments = {"shape": shape, **dict(zip(names, args, strict=False)), **kwargs, **place(seed, seed2, shape)}
            return make(**arguments, name=name or STATEFUL_TYPES[stateless])

        return draw

    with _patched({function: replaced(function, stateless) for function, stateless in _REPLACEMENTS.items()}):
        yield


@contextlib.contextmanager
def _patched(functions: Mapping[str, Callable[..., Any]]) -> Iterator[None]:
    with _patching:
        yield from _patched_now(functions)


def _patched_now(functions: Mapping[str, Callable[..., Any]]) -> Iterator[None]:
    before = {name: getattr(gen_random_ops, name) for name in functions}
    for name, function in functions.items():
        setattr(gen_random_ops, name, function)
    try:
        yield
    finally:
        for name, function in before.items():
            setattr(gen_random_ops, name, function)

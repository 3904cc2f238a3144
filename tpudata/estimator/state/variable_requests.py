"""Requests for variables in a trace, and the keys that identify them.

A request is identified by the requested name and the number of earlier requests for that name, since graphs change names to
make them unique.
"""

import re
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import tensorflow as tf

# (requested name without numbers, number of this request for it, from 1).
Key: TypeAlias = tuple[str, int]
# The next creator of `tf.variable_creator_scope`, which takes keyword arguments.
VariableMaker: TypeAlias = Callable[..., tf.Variable]


def make_key_counter() -> Callable[[str], Key]:
    """Return a function that counts requests: it maps a requested name to the key (name without numbers, n) of its n-th request."""
    request_counts: Counter[str] = Counter()

    def make_key(name: str) -> Key:
        plain_name = _strip_numbers(name)
        request_counts[plain_name] += 1
        return plain_name, request_counts[plain_name]

    return make_key


def _strip_numbers(name: str) -> str:
    """Strip the numbers that make names unique, which differ between replicas that share a graph."""
    return re.sub(r"_\d+(?=/|$)", "", name)


def make_variable_creator(
    make_variable: Callable[[Key, VariableMaker, Mapping[str, Any]], tf.Variable], make_key: Callable[[str], Key]
) -> Callable[..., tf.Variable]:
    """Return a creator for `tf.variable_creator_scope`.

    Args:
        make_variable: function of the key, the next creator and its keyword arguments that returns the variable.
        make_key: function from the requested name to the key.
    """

    def create_variable(create: VariableMaker, **kwargs: Any) -> tf.Variable:
        scope = tf.get_current_name_scope()
        name = kwargs.get("name") or "Variable"  # TensorFlow's default.
        return make_variable(make_key(f"{scope}/{name}" if scope else name), create, kwargs)

    return create_variable

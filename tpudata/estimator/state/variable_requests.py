"""Requests for variables in a trace, and the keys that identify them.

A request is identified by the requested name and the number of earlier requests for that name, as graphs change names to make them
unique.
"""

import itertools
import re
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import tensorflow as tf

Key: TypeAlias = tuple[str, int]


class Requests:
    """The requests for variables in one trace, by the names of the first replica's requests.

    A graph makes names unique, so that the requests of a second replica traced into it have other names, in the same order.
    """

    def __init__(self) -> None:
        self._first: list[Key] = []
        self._is_begun = False

    def keys(self) -> Callable[[str], Key]:
        """Return a function from a requested name to the key of the request, for the next replica."""
        # Replicas are traced in order; in a cluster, the first one of this process need not be number 0.
        if not self._is_begun:
            self._is_begun = True
            counted = counted_keys()

            def first(name: str) -> Key:
                self._first.append(counted(name))
                return self._first[-1]

            return first
        position = itertools.count()

        def later(name: str) -> Key:
            # The first replica has made the request before, unless model_fn requests other variables this time.
            key = next(itertools.islice(self._first, next(position), None), (name, 1))
            return key if key[0].rpartition("/")[2] == _without_numbers(name).rpartition("/")[2] else (name, 1)

        return later


def counted_keys() -> Callable[[str], Key]:
    """Return a function from a requested name to the key of the request, by counting equal names."""
    requests: Counter[str] = Counter()

    def key(name: str) -> Key:
        plain = _without_numbers(name)
        requests[plain] += 1
        return plain, requests[plain]

    return key


def _without_numbers(name: str) -> str:
    """Return a name without the numbers that make it unique, which differ between replicas that share a graph."""
    return re.sub(r"_\d+(?=/|$)", "", name)


def variable_creator(
    answer: Callable[[Key, Callable[..., Any], Mapping[str, Any]], Any], key_of: Callable[[str], Key]
) -> Callable[..., Any]:
    """Return a creator for `tf.variable_creator_scope`.

    Args:
        answer: function from the key, the next creator and its arguments to the variable.
        key_of: function from the requested name to the key.
    """

    def creator(create: Callable[..., Any], **kwargs: Any) -> Any:
        scope = tf.get_current_name_scope()
        name = kwargs.get("name") or "Variable"
        return answer(key_of(f"{scope}/{name}" if scope else name), create, kwargs)

    return creator

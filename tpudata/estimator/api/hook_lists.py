"""Lists of hooks and of saving listeners, checked before a run."""

from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from tpudata.estimator.api.errors import ModelFnTypeError

_train = tf.compat.v1.train


def check_hooks(hooks: Any, owner: str) -> tuple[Any, ...]:
    """Check a list of hooks; None stands for an empty one.

    Raises:
        TypeError: an entry is not a SessionRunHook.
    """
    return _checked(hooks, owner, "hooks", _train.SessionRunHook, ModelFnTypeError)


def check_listeners(listeners: Any, owner: str) -> tuple[Any, ...]:
    """Check a list of saving listeners; None stands for an empty one.

    Raises:
        TypeError: an entry is not a CheckpointSaverListener.
    """
    return _checked(listeners, owner, "listeners", _train.CheckpointSaverListener, TypeError)


def _checked(given: Any, owner: str, what: str, base: type, error: type[TypeError]) -> tuple[Any, ...]:
    if given is not None and not isinstance(given, Iterable):
        raise error(f"{owner} must be a list of {what} or None, got {given!r}. Put it into a list.")
    found = tuple(given or ())
    for item in found:
        if not isinstance(item, base):
            raise error(
                f"{owner} must contain tf.compat.v1.train.{base.__name__} instances, got {item!r}. Derive its class from that."
            )
    return found

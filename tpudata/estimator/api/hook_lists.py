"""Lists of hooks and of saving listeners, checked before a run."""

from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from tpudata.estimator.api.errors import ModelFnTypeError

_train = tf.compat.v1.train


def check_hooks(hooks: Any, owner: str) -> tuple[Any, ...]:
    """Return a list of hooks as a tuple, checked; () for None.

    Raises:
        TypeError: an entry is not a SessionRunHook.
    """
    return _check_list(hooks, owner, "hooks", _train.SessionRunHook, ModelFnTypeError)


def check_listeners(listeners: Any, owner: str) -> tuple[Any, ...]:
    """Return a list of saving listeners as a tuple, checked; () for None.

    Raises:
        TypeError: an entry is not a CheckpointSaverListener.
    """
    return _check_list(listeners, owner, "listeners", _train.CheckpointSaverListener, TypeError)


def _check_list(instances: Any, owner: str, noun: str, base: type, error: type[TypeError]) -> tuple[Any, ...]:
    if instances is not None and not isinstance(instances, Iterable):
        raise error(f"{owner} must be a list of {noun} or None, got {instances!r}. Put it into a list.")
    checked = tuple(instances or ())
    for instance in checked:
        if not isinstance(instance, base):
            raise error(
                f"{owner} must contain tf.compat.v1.train.{base.__name__} instances, got {instance!r}. Derive its class from that."
            )
    return checked

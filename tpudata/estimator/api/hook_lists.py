"""Lists of hooks and of saving listeners, checked before a run."""

from collections.abc import Iterable, Sequence
from typing import TypeAlias, TypeVar

import tensorflow as tf

from tpudata.estimator.api.errors import ModelFnTypeError

SessionRunHook: TypeAlias = tf.compat.v1.train.SessionRunHook
CheckpointSaverListener: TypeAlias = tf.compat.v1.train.CheckpointSaverListener
_T = TypeVar("_T")


def check_hooks(hooks: Sequence[SessionRunHook] | None, owner: str) -> tuple[SessionRunHook, ...]:
    """Return a list of hooks as a tuple, checked; () for None.

    Raises:
        TypeError: an entry is not a SessionRunHook.
    """
    return _check_list(hooks, owner, "hooks", SessionRunHook, ModelFnTypeError)


def check_listeners(
    listeners: Sequence[CheckpointSaverListener] | None, owner: str
) -> tuple[CheckpointSaverListener, ...]:
    """Return a list of saving listeners as a tuple, checked; () for None.

    Raises:
        TypeError: an entry is not a CheckpointSaverListener.
    """
    return _check_list(listeners, owner, "listeners", CheckpointSaverListener, TypeError)


def _check_list(instances: object, owner: str, noun: str, base: type[_T], error: type[TypeError]) -> tuple[_T, ...]:
    if instances is not None and not isinstance(instances, Iterable):
        raise error(f"{owner} must be a list of {noun} or None, got {instances!r}. Put it into a list.")
    checked = tuple(instances or ())
    for instance in checked:
        if not isinstance(instance, base):
            raise error(
                f"{owner} must contain tf.compat.v1.train.{base.__name__} instances, got {instance!r}. Derive its class from that."
            )
    return checked

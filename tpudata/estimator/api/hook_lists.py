"""Lists of hooks and of saving listeners, checked before a run."""

from collections.abc import Iterable, Sequence
from typing import TypeAlias, TypeVar

import tensorflow as tf

from tpudata.estimator.api.errors import ModelFnTypeError

SessionRunHook: TypeAlias = tf.compat.v1.train.SessionRunHook
CheckpointSaverListener: TypeAlias = tf.compat.v1.train.CheckpointSaverListener
_T = TypeVar("_T")


def check_hooks(hooks: Sequence[SessionRunHook] | None, label: str) -> tuple[SessionRunHook, ...]:
    """Check a list of hooks, and return it as a tuple; () for None.

    Args:
        hooks: the list.
        label: name of the argument that has the list, for messages.

    Raises:
        TypeError: the argument is not a list, or an entry is not a SessionRunHook.
    """
    return _check_list(hooks, label, "hooks", SessionRunHook, ModelFnTypeError)


def check_listeners(
    listeners: Sequence[CheckpointSaverListener] | None, label: str
) -> tuple[CheckpointSaverListener, ...]:
    """Check a list of saving listeners, and return it as a tuple; () for None.

    Args:
        listeners: the list.
        label: name of the argument that has the list, for messages.

    Raises:
        TypeError: the argument is not a list, or an entry is not a CheckpointSaverListener.
    """
    return _check_list(listeners, label, "listeners", CheckpointSaverListener, TypeError)


def _check_list(
    instances: object, label: str, noun: str, base: type[_T], error_class: type[TypeError]
) -> tuple[_T, ...]:
    """Check a list of instances of a class, and return it as a tuple; () for None.

    Args:
        instances: the list.
        label: name of the argument that has the list, for messages.
        noun: word for the instances, for messages.
        base: the class.
        error_class: class of the error if this is not a list of instances of `base`.
    """
    if instances is not None and not isinstance(instances, Iterable):
        raise error_class(f"{label} must be a list of {noun} or None, got {instances!r}. Put it into a list.")
    checked = tuple(instances or ())
    for instance in checked:
        if not isinstance(instance, base):
            raise error_class(
                f"{label} must contain tf.compat.v1.train.{base.__name__} instances, got {instance!r}. Derive its class from that."
            )
    return checked

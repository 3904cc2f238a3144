"""Lists of hooks and of saving listeners, checked before a run."""

from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from tpudata.estimator.api.errors import ModelFnTypeError

_train = tf.compat.v1.train


def check_hooks(hooks: Any, owner: str) -> tuple[Any, ...]:
    """Check a list of hooks, or None for none.

    Raises:
        TypeError: an entry is no SessionRunHook.
    """
    if hooks is not None and not isinstance(hooks, Iterable):
        raise ModelFnTypeError(f"{owner} must be a list of hooks or None, got {hooks!r}: put it into a list.")
    found = tuple(hooks or ())
    for hook in found:
        if not isinstance(hook, _train.SessionRunHook):
            raise ModelFnTypeError(
                f"{owner} must hold tf.compat.v1.train.SessionRunHook instances, got {hook!r}: derive its class from that."
            )
    return found


def check_listeners(listeners: Any, owner: str) -> tuple[Any, ...]:
    """Check a list of saving listeners, or None for none.

    Raises:
        TypeError: an entry is no CheckpointSaverListener.
    """
    if listeners is not None and not isinstance(listeners, Iterable):
        raise TypeError(f"{owner} must be a list of listeners or None, got {listeners!r}: put it into a list.")
    found = tuple(listeners or ())
    for listener in found:
        if not isinstance(listener, _train.CheckpointSaverListener):
            raise TypeError(
                f"{owner} must hold tf.compat.v1.train.CheckpointSaverListener instances, got {listener!r}: derive its class "
                "from that."
            )
    return found

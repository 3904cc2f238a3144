"""Ends iterators where that cannot wait for ever: in no thread that feeds them, and before the interpreter ends.

To destroy an iterator, TensorFlow waits until the functions of its dataset that are under way have returned. Where nothing but a
cycle of references holds an iterator, the collector destroys it, in whichever thread happens to start it. If that is a thread that
runs such a function (`tf.numpy_function`), or one that the function waits for, the function never returns, and neither does the
collector. So what is collected in any thread but the main one, which feeds nothing, has its iterators destroyed elsewhere.

The same where the interpreter ends first: a function that then wants to go on with Python never does, and an iterator in a global
variable, which is destroyed later than that, waits for it. So all are destroyed when the program has done its work.
"""

from __future__ import annotations

import atexit
import gc
import threading
from typing import Any

import tensorflow as tf

# The collector's last generation: it and the younger ones are all objects.
_OLDEST = 2


def keep_iterators() -> None:
    """From now on, no iterator is destroyed in a thread that may feed it, or too late. Calls after the first change nothing."""
    if not any(isinstance(callback, _Keeper) for callback in gc.callbacks):
        gc.callbacks.append(_Keeper())
        atexit.register(_end_iterators)


class _Keeper:
    """A callback of `gc.callbacks`: while another thread than the main one collects, every iterator is in use."""

    def __init__(self) -> None:
        self._kept: list[Any] = []

    def __call__(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start" and threading.get_ident() != threading.main_thread().ident:
            self._kept = _iterators(info["generation"])
        elif self._kept:
            kept, self._kept = self._kept, []
            # Nothing but this list may hold them by now. Those that are part of a cycle themselves stay for the next time.
            threading.Thread(target=kept.clear, name="tpudata-collect").start()


def _end_iterators() -> None:
    for iterator in _iterators(_OLDEST):
        # It holds TensorFlow's; whoever holds it does so to the end.
        vars(iterator).clear()


def _iterators(generation: int) -> list[Any]:
    """The iterators that the collector of a generation looks at."""
    found: list[Any] = []
    for number in range(generation + 1):
        objects = gc.get_objects(number)
        # By their exact types, of which there are few: there may be a million objects, and isinstance runs the code of some.
        kinds = {kind for kind in set(map(type, objects)) if tf.data.Iterator in kind.__mro__}
        found += [value for value in objects if type(value) in kinds] if kinds else []
    return found

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
import itertools
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

# The collector's last generation: it and the younger ones are all objects.
_OLDEST = 2
_Tensor = tf.__internal__.EagerTensor


def keep_iterators() -> None:
    """From now on, no iterator is destroyed in a thread that may feed it, or too late. Calls after the first change nothing."""
    if not any(isinstance(callback, _Keeper) for callback in gc.callbacks):
        gc.callbacks.append(_Keeper())
        atexit.register(_end_iterators)


class _Keeper:
    """A callback of `gc.callbacks`: while another thread than the main one collects, every iterator is in use.

    What is collected may be younger than an iterator that it alone holds, so all iterators are known: each was looked at when the
    collector first met it, before it became older.
    """

    def __init__(self) -> None:
        self._known: weakref.WeakSet[Any] = weakref.WeakSet()
        self._kept: list[Any] = []

    def __call__(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            iterators, tensors = _met(info["generation"])
            self._known.update(iterators)
            if threading.get_ident() != threading.main_thread().ident:
                self._kept = [*self._known, *tensors]
        elif self._kept:
            kept, self._kept = self._kept, []
            _keep_the_last(kept)
            if kept:
                threading.Thread(target=kept.clear, name="tpudata-collect").start()


def _chosen(items: list[Any], chooses: Callable[[int], object]) -> Iterator[Any]:
    """The items that are chosen by how many references there are to each."""
    return itertools.compress(items, map(chooses, map(sys.getrefcount, items)))


def _alone() -> int:
    """How many references there are to what nothing but a list holds, counted as above."""
    counts: list[int] = []
    list(_chosen([object()], counts.append))
    return counts[0]


_ALONE = _alone()


def _keep_the_last(kept: list[Any]) -> None:
    """Removes from a list what others hold, too, or is part of a cycle: none of that is destroyed with it.

    No other thread runs between the count and the removal: Python changes threads between its instructions, and this is one.
    """
    kept[:] = _chosen(kept, _ALONE.__ge__)


def _end_iterators() -> None:
    # The collector goes on to the end, when half of the modules are gone.
    gc.callbacks[:] = [callback for callback in gc.callbacks if not isinstance(callback, _Keeper)]
    iterators, _ = _met(_OLDEST)
    for iterator in iterators:
        # It holds TensorFlow's; whoever holds it does so to the end.
        vars(iterator).clear()


def _met(generation: int) -> tuple[list[Any], list[Any]]:
    """The iterators that the collector of a generation looks at, and the tensors, among which are the handles of TensorFlow's own.

    A handle counts for itself: while its iterator is being destroyed in another thread, the list of all objects may be the last
    that holds it, and this thread would destroy it with that list. Which of the tensors are handles cannot be asked: one that is
    being made has no value yet, and TensorFlow looks into it all the same.
    """
    iterators: list[Any] = []
    tensors: list[Any] = []
    for number in range(generation + 1):
        objects = gc.get_objects(number)
        # By their exact types, of which there are few: there may be a million objects, and isinstance runs the code of some.
        kinds = set(map(type, objects))
        if _Tensor in kinds:
            tensors += [value for value in objects if type(value) is _Tensor]
        kinds = {kind for kind in kinds if tf.data.Iterator in kind.__mro__}
        iterators += [value for value in objects if type(value) in kinds] if kinds else []
    return iterators, tensors

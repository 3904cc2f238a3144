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
import contextlib
import functools
import gc
import itertools
import sys
import threading
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf


def keep_iterators() -> None:
    """From now on, no iterator is destroyed in a thread that may feed it, or too late. Calls after the first change nothing."""
    if not any(isinstance(callback, _Keeper) for callback in gc.callbacks):
        keeper = _Keeper()
        for kind in _kinds(tf.data.Iterator):
            _note_new(kind, keeper.note)
        gc.callbacks.append(keeper)
        atexit.register(_end_iterators, keeper)


class _Keeper:
    """A callback of `gc.callbacks`: while another thread than the main one collects, every iterator is in use.

    Each is noted as it is made. To look for them among all objects (`gc.get_objects`) would hold these for a while, also tuples
    that `tuple(generator)` is still filling in another thread, which then fails with a SystemError.
    """

    def __init__(self) -> None:
        # By id. A WeakSet cannot be gone through while others add to it.
        self._known: dict[int, weakref.ref[Any]] = {}
        self._kept: list[Any] = []

    def note(self, iterator: Any) -> None:
        """An iterator that is there from now on."""
        known, key = self._known, id(iterator)
        known[key] = weakref.ref(iterator, lambda _: known.pop(key, None))

    def iterators(self) -> list[Any]:
        """Those that are there."""
        found = [reference() for reference in list(self._known.values())]
        return [iterator for iterator in found if iterator is not None]

    def __call__(self, phase: str, info: dict[str, int]) -> None:  # noqa: ARG002
        if phase == "start":
            if threading.get_ident() != threading.main_thread().ident:
                self._kept = self.iterators()
        elif self._kept:
            kept, self._kept = self._kept, []
            _keep_the_last(kept)
            if kept:
                threading.Thread(target=kept.clear, name="tpudata-collect").start()


def _kinds(kind: type) -> Iterator[type]:
    """The classes that are made of a class and have a constructor of their own."""
    subclasses: list[type] = kind.__subclasses__()
    for other in subclasses:
        if "__init__" in vars(other):
            yield other
        yield from _kinds(other)


def _note_new(kind: Any, note: Callable[[Any], None]) -> None:
    """Notes every object of a class from now on."""
    make = kind.__init__

    @functools.wraps(make)
    def noting(self: Any, *arguments: Any, **named: Any) -> None:
        make(self, *arguments, **named)
        note(self)

    kind.__init__ = noting


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


def _end_iterators(keeper: _Keeper) -> None:
    # The collector goes on to the end, when half of the modules are gone.
    gc.callbacks[:] = [callback for callback in gc.callbacks if callback is not keeper]
    held: list[Any] = []
    for iterator in keeper.iterators():
        # It holds TensorFlow's; whoever holds it does so to the end.
        held += vars(iterator).values()
        vars(iterator).clear()
    # An error that came out of an iterator holds TensorFlow's too, by the variables of the calls that it ended: so does the
    # interpreter, of an error that ended the program.
    held = [value for value in held if tf.is_tensor(value)]
    for holder in gc.get_referrers(*held) if held else ():
        if isinstance(holder, types.FrameType):
            # One that still runs, in another thread, is none of an error.
            with contextlib.suppress(RuntimeError):
                holder.clear()

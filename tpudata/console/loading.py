"""Import TensorFlow or Beam without the garbage collector, in the processes of a command."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator

from tpudata.console.interrupts import interruptible_loading, owns_process


@contextlib.contextmanager
def loading_without_gc() -> Iterator[None]:
    """Switch the garbage collector off while the body imports large libraries, and exempt their objects from later collections.

    The collector would scan all their objects repeatedly and free none: without it, importing TensorFlow takes 3.6 s instead of
    4.6 s, Beam 1.2 s instead of 1.5 s, and a conversion takes a tenth less. In the body, Ctrl-C ends the process immediately.
    In another program, nothing is changed.
    """
    if not (owns_process() and gc.isenabled()):
        yield
        return
    gc.disable()
    try:
        with interruptible_loading():
            yield
    finally:
        gc.freeze()
        gc.enable()

"""Lifelines: pipes that let processes end with the process that started them, even if it is killed.

Nothing is written to a lifeline. A process that holds its reading end finds the end of file when the starting process closes the
other end, which no other process has, or dies.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
from collections.abc import Callable


class Lifeline:
    """A lifeline of processes that this one starts; each gets `reader` through `pass_fds`, and its number as an argument.

    Attributes:
        reader: descriptor of the reading end.
    """

    def __init__(self) -> None:
        self.reader, self._writer = map(_move_above_stderr, os.pipe())
        # The right to close the writing end. Popping is atomic, so only one caller gets it: once the descriptor is closed, its
        # number may belong to another file.
        self._right_to_close = [None]

    def cut(self) -> None:
        """End all processes that hold the reading end or get it later; any thread may call it, more than once."""
        # IndexError: another caller has got the right to close it.
        with contextlib.suppress(IndexError):
            self._right_to_close.pop()
            os.close(self._writer)

    def close(self) -> None:
        """Cut the lifeline and close its reading end, so that no more processes can be started with it."""
        self.cut()
        os.close(self.reader)

    def __enter__(self) -> Lifeline:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _move_above_stderr(descriptor: int) -> int:
    """Return the descriptor, or a copy in its place if its number is that of a standard stream, which a child may redirect.

    A pipe gets such a number in a program that has closed its standard streams.
    """
    if descriptor > 2:
        return descriptor
    copy = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 3)
    os.close(descriptor)
    return copy


def watch(reader: int, on_end: Callable[[], object]) -> None:
    """Call a function, in another thread, when a lifeline ends.

    Args:
        reader: descriptor of the lifeline's reading end.
        on_end: the function; its result is ignored.
    """

    def wait() -> None:
        # Returns only at the end of the file, since nothing is written to a lifeline.
        os.read(reader, 1)
        on_end()

    threading.Thread(target=wait, name="tpudata-lifeline", daemon=True).start()

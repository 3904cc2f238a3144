"""The root logger of a program that calls a conversion."""

from __future__ import annotations

import logging
import threading


class _WithoutBeamHandler:
    """A context in which Beam adds no handler to the root logger.

    Importing Beam and making its options call `logging.basicConfig()`, which adds a handler to a root logger without one; the
    program's own call would then have no effect. So a root logger without handlers temporarily gets Python's last-resort handler,
    which prints what Python would print without any handler.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # Number of calls that are in the context; the last one to leave it removes the handler.
        self._user_count = 0
        self._added_handler: logging.Handler | None = None

    def __enter__(self) -> None:
        with self._lock:
            self._user_count += 1
            if not logging.root.handlers:
                # A program may have set lastResort to None to print nothing.
                self._added_handler = logging.lastResort or logging.NullHandler()
                logging.root.addHandler(self._added_handler)

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._user_count -= 1
            if not self._user_count and self._added_handler is not None:
                logging.root.removeHandler(self._added_handler)
                self._added_handler = None


without_beam_handler = _WithoutBeamHandler()

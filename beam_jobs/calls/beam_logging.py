"""The root logger of a program that calls a conversion."""

from __future__ import annotations

import logging
import threading


class _WithoutBeamHandler:
    """A context that ends without the handler that Beam adds to a root logger without one.

    Importing Beam and making its options call `logging.basicConfig()`, after which a program's own call has no effect.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._was_empty = False

    def __enter__(self) -> None:
        with self._lock:
            if self._users == 0:
                self._was_empty = not logging.root.handlers
            self._users += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._users -= 1
            if self._users == 0 and self._was_empty:
                for handler in [*logging.root.handlers]:
                    # What basicConfig adds without arguments.
                    if type(handler) is logging.StreamHandler:
                        logging.root.removeHandler(handler)


without_beam_handler = _WithoutBeamHandler()

"""Python processes that this one starts."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

# With this variable, `python -m` and `python -c` import nothing from the working directory.
_SAFE_PATH = "PYTHONSAFEPATH"


def make_child_environment() -> dict[str, str]:
    """Return an environment in which `python -m` finds the modules that this process finds, in the same places.

    Without it, a file of the working directory, such as queue.py, takes the place of the module of Python with its name.
    """
    # This process may have changed its path, or its variable, since it started.
    folders = [
        *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)),
        # The empty entry of an interactive process is its working directory.
        *(entry or str(Path.cwd()) for entry in sys.path if isinstance(entry, str) and os.pathsep not in entry),
    ]
    return {**os.environ, _SAFE_PATH: "1", "PYTHONPATH": os.pathsep.join(dict.fromkeys(folders))}


@contextlib.contextmanager
def safe_import_path() -> Iterator[None]:
    """Let `multiprocessing` start processes that import no file of the working directory by accident.

    They get the import path of this process after they have imported `multiprocessing`. Only commands use this, since variables
    belong to the whole process.
    """
    earlier = os.environ.get(_SAFE_PATH)
    os.environ[_SAFE_PATH] = "1"
    try:
        yield
    finally:
        if earlier is None:
            del os.environ[_SAFE_PATH]
        else:
            os.environ[_SAFE_PATH] = earlier

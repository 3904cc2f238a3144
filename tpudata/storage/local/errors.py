"""Errors of the operating system, with the file, the reason and the fix."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator

from tpudata.console.machine_errors import DISK_FIX
from tpudata.errors import StorageError

# The action in errors of a file that is being written.
WRITTEN = "written"
_PERMIT = "Give this account permissions for it and the folders above it (`namei -l` shows the owners)."
_FIX_BY_ERROR_NUMBER = {
    errno.ENOENT: "Check whether it was moved or removed.",
    errno.EEXIST: "There is a file in place of a folder: move it away, or pass another path.",
    errno.ENOTDIR: "A part of this path is a file: pass another path.",
    errno.EISDIR: "It is a folder: pass a file.",
    errno.EACCES: _PERMIT,
    errno.EPERM: _PERMIT,
    errno.EROFS: "Pass a folder elsewhere, or mount this file system for writing.",
    errno.ENOSPC: "Free space there (`df -h` shows bytes, `df -i` files), or pass a folder on another disk.",
    errno.EDQUOT: "Free space there (`quota -s` shows the quota), or pass a folder on another disk.",
    errno.EFBIG: "Make the files smaller, or raise the limit (`ulimit -f`, or the file system's).",
    errno.EMFILE: "Raise the number of open files of a process (`ulimit -n`).",
    errno.ENFILE: "Raise the number of open files of the system (`sysctl fs.file-max`), or end other programs.",
    errno.ENAMETOOLONG: "Use shorter names: most file systems allow 255 bytes, 42 of which are used during writing.",
    errno.ELOOP: "Its links lead in a circle: fix or remove them.",
    errno.ENOMEM: "Memory ran out: end other programs, or use a machine with more.",
    errno.EIO: DISK_FIX,
    errno.ESTALE: "The file server has replaced the file: run again.",
}
_REMOVED = "It was removed during writing: let no other job write there at the same time."


def make_storage_error(action: str, path: str, error: OSError) -> StorageError:
    """Return the error for a file, with the reason and, if known, the fix.

    Args:
        action: what could not be done with the file, such as "read".
        path: path of the file.
        error: the operating system's error.
    """
    # While a file is written, its folder was made just before, so a missing path means that it was removed.
    fix = (
        _REMOVED if (action, error.errno) == (WRITTEN, errno.ENOENT) else _FIX_BY_ERROR_NUMBER.get(error.errno or 0, "")
    )
    return StorageError(f"{path} could not be {action}: {error.strerror or error}. {fix}".rstrip())


@contextlib.contextmanager
def translate_errors(action: str, path: str) -> Iterator[None]:
    """Turn an operating system error into the StorageError that `make_storage_error` returns.

    Args:
        action: what could not be done with the file, such as "read".
        path: path of the file.
    """
    try:
        yield
    except OSError as error:
        raise make_storage_error(action, path, error) from error

"""Errors of the operating system, with the file, the reason and the fix."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator

from tpudata.errors import StorageError

WRITTEN = "written"
_LEAVE = "Give the account that runs this leave for it and for the folders above it (`namei -l` shows whose they are)."
_MENDS = {
    errno.ENOENT: "Look whether it was moved or removed.",
    errno.EEXIST: "A file is where a folder is due: move it away, or name another.",
    errno.ENOTDIR: "A part of this path is a file: name another.",
    errno.EISDIR: "It is a folder: name a file.",
    errno.EACCES: _LEAVE,
    errno.EPERM: _LEAVE,
    errno.EROFS: "Name a folder elsewhere, or mount this file system for writing.",
    errno.ENOSPC: "Make room there (`df -h`; where that shows room, `df -i` counts the files), or name a folder on another disk.",
    errno.EDQUOT: "Make room there (`quota -s` shows what is allowed), or name a folder on another disk.",
    errno.EFBIG: "Make the files smaller, or raise what is allowed (`ulimit -f`, and what the file system takes).",
    errno.EMFILE: "Raise how many files a process may have open (`ulimit -n`).",
    errno.ENFILE: "Raise how many files the system may have open (`sysctl fs.file-max`), or end other programs.",
    errno.ENAMETOOLONG: "Use shorter names: most file systems take 255 bytes for one, less 42 while it is written.",
    errno.ELOOP: "Its links lead in a circle: fix or remove them.",
    errno.EIO: "The disk or the connection to it fails: see the system's log (`dmesg`).",
    errno.ESTALE: "The file server has another file there now: run again.",
}
# Its folder is made before, so it was there.
_REMOVED = "It was removed while it was written: let no other job write there meanwhile."


def storage_error(done: str, path: str, error: OSError) -> StorageError:
    """Return the error that says that a file could not be `done`, such as "read"; why, and what to do if that is known."""
    mend = _REMOVED if (done, error.errno) == (WRITTEN, errno.ENOENT) else _MENDS.get(error.errno or 0, "")
    return StorageError(f"{path} could not be {done}: {error.strerror or error}. {mend}".rstrip())


@contextlib.contextmanager
def named(done: str, path: str) -> Iterator[None]:
    """Turn an operating system error into `storage_error`."""
    try:
        yield
    except OSError as error:
        raise storage_error(done, path, error) from error

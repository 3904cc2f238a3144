"""Checks for the tests of packages that add a storage: whether it keeps what `tpudata.storage.Storage` promises."""

from __future__ import annotations

import contextlib
import itertools
from concurrent.futures import ThreadPoolExecutor

from tpudata.console.tables import count_text
from tpudata.errors import StorageError
from tpudata.storage import Storage, storage_for

_DATA = bytes(range(256)) * 40
_NAMES = ("a b", "c%41", "d#1", "e", "é", "🐈")
_RANGES = ((0, 1), (3, 4), (0, len(_DATA)), (len(_DATA) - 2, 9), (len(_DATA), 3), (5, 0))
_THREADS = 8


def check_storage(folder: str) -> None:
    """Write, read, list and delete files in a folder, and check each promise of its storage.

    Args:
        folder: an empty folder, or one that does not exist, such as `share://name/test`. Its files are deleted at the end.

    Raises:
        AssertionError: a promise is broken; says which one.
        StorageError: the folder cannot be written or read at all.
    """
    check = _StorageCheck(folder)
    check.check_writing()
    check.check_reading()
    check.check_listing()
    check.check_ranges_of_names()
    check.check_absent_files()
    check.check_swap()
    check.check_deletion()


class _StorageCheck:
    """The checks of a storage.

    Args:
        folder: folder to which they write.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._storage: Storage = storage_for(folder)
        self._file = self._join_path("whole")

    def check_writing(self) -> None:
        """Check that a file appears whole, once it is complete, or not at all."""
        storage, path = self._storage, self._file
        self._claim(storage.stat(path) is None, f"{path} exists already. Pass an empty folder.")
        storage.check_writable(path)
        self._claim(storage.stat(path) is None, f"`check_writable` leaves {path} there.")
        with storage.create(path) as file:
            file.write(_DATA[:100])
            file.writelines([_DATA[100:200], _DATA[200:]])
            self._claim(storage.stat(path) is None, f"{path} is visible before `create` has ended.")
        self._claim(storage.read(path) == _DATA, f"{path} does not have the bytes that were written.")
        self._abort(path)
        self._claim(storage.read(path) == _DATA, "a `create` that ends in an error changes the file that was there.")
        self._abort(self._join_path("aborted"))
        self._claim(storage.stat(self._join_path("aborted")) is None, "a `create` that ends in an error leaves a file.")
        self._write(path, b"other")
        self._claim(storage.read(path) == b"other", "`create` does not replace a file.")
        self._write(path, b"")
        self._claim(storage.read(path) == b"", "an empty file is not read as one.")
        self._write(path, _DATA)
        with contextlib.suppress(StorageError):
            self._write(path, _DATA, replace=False)
        self._claim(storage.read(path) == _DATA, "`create` with replace=False damages a file of the same bytes.")

    def check_reading(self) -> None:
        """Check that every way of reading returns the same bytes, also to many threads."""
        storage, path = self._storage, self._file
        for size in (None, len(_DATA), 1, 2 * len(_DATA)):
            self._claim(storage.read(path, size) == _DATA, f"`read` with size={size} does not return the whole file.")
        for (offset, length), is_checked in itertools.product(_RANGES, (False, True)):
            storage.expect(path, offset, length)
            part = storage.read_range(path, offset, length, is_checked=is_checked)
            expected = _DATA[offset : offset + length]
            self._claim(
                part == expected,
                f"`read_range` of {length} bytes from {offset} returns others (got {count_text(len(part), 'byte')}, expected"
                f" {len(expected)} of {len(_DATA)}).",
            )
        with storage.open(path) as file:
            self._claim(
                (file.read(7), file.read()) == (_DATA[:7], _DATA[7:]), "`open` does not read from start to end."
            )
        storage.expect(self._join_path("none"), 0, 1)
        with ThreadPoolExecutor(_THREADS) as pool:
            offsets = range(0, len(_DATA), 100)
            parts = pool.map(lambda offset: storage.read_range(path, offset, 100), offsets)
            self._claim(b"".join(parts) == _DATA, f"{_THREADS} threads read other bytes than one.")
        entry = storage.stat(path)
        self._claim(
            entry is not None and (entry.name, entry.size, entry.is_folder) == ("whole", len(_DATA), False),
            f"`stat` of {path} is not that of a file of {len(_DATA)} bytes (got {entry}).",
        )

    def check_listing(self) -> None:
        """Check that a folder lists its files and folders, with any names, and their paths can be read."""
        storage = self._storage
        names = sorted(_NAMES, key=str.encode)
        for name in names:
            self._write(self._join_path("names", name, "file"), name.encode())
        entries = storage.list(self._join_path("names"))
        self._claim(
            [(entry.name, entry.is_folder, entry.size) for entry in entries] == [(name, True, 0) for name in names],
            f"`list` does not return the folders that were written, in order (got {[entry.name for entry in entries]},"
            f" expected {names}).",
        )
        for entry in entries:
            (file,) = storage_for(entry.path).list(entry.path)
            data = storage_for(file.path).read(file.path)
            self._claim(
                (file.name, file.size, data) == ("file", len(data), entry.name.encode()),
                f"{file.path}, as `list` returns it, is not the file that was written below {entry.name!r}.",
            )
        above = storage.stat(self._join_path("names"))
        self._claim(above is not None and above.is_folder, f"`stat` of a folder is not one (got {above}).")

    def check_ranges_of_names(self) -> None:
        """Check that a listing in parts is the whole one: `scan` with limits, and between `cuts`."""
        storage, folder = self._storage, self._join_path("names")
        self._write(self._join_path("names", "e.file"), b"1")
        depths = (False, True) if storage.lists_deep else (False,)
        for deep in depths:
            keys = [_scan_key(entry.path, entry.is_folder, deep=deep) for entry in storage.scan(folder, deep=deep)]
            paths = [entry.path for entry in storage.scan(folder, deep=deep)]
            self._claim(
                len(paths) == len(_NAMES) + 1, f"`scan` with deep={deep} lists {len(paths)} of {len(_NAMES) + 1}."
            )
            self._claim(keys == sorted(keys), f"`scan` with deep={deep} is not in the order of names (got {paths}).")
            for limit in (1, 3):
                some = [entry.path for entry in storage.scan(folder, limit=limit, deep=deep)]
                self._claim(some == paths[:limit], f"`scan` with limit={limit} does not return the first (got {some}).")
            for cuts in (storage.cuts(folder, deep=deep), ("c", "e.", "f")):
                self._claim([*cuts] == sorted(set(cuts)), f"`cuts` are not in ascending order (got {[*cuts]}).")
                ends = ["", *cuts, None]
                parts = [
                    entry.path
                    for start, stop in itertools.pairwise(ends)
                    for entry in storage.scan(folder, start=start or "", stop=stop, deep=deep)
                ]
                self._claim(
                    parts == paths,
                    f"`scan` between {[*cuts]} with deep={deep} returns other entries than the whole (got {parts}, expected"
                    f" {paths}).",
                )

    def check_absent_files(self) -> None:
        """Check that what is not there is None or a StorageError."""
        storage, path = self._storage, self._join_path("none")
        self._claim(storage.stat(path) is None, f"`stat` of {path}, which does not exist, is not None.")
        for call in (
            lambda: storage.read(path),
            lambda: storage.read_range(path, 0, 1),
            lambda: storage.open(path).read(),
            lambda: storage.list(path),
            lambda: [*storage.scan(path)],
        ):
            with contextlib.suppress(StorageError):
                call()
                raise AssertionError(
                    f"{self._folder}: a file or folder that does not exist does not raise a StorageError ({path})."
                )

    def check_swap(self) -> None:
        """Check that of many callers of `swap` one succeeds, and others change nothing."""
        storage, path = self._storage, self._join_path("swapped")
        self._claim(not storage.swap(path, b"a", b"b"), "`swap` replaces a file that does not exist.")
        for old in (None, b"winner 0"):
            contents = [b"%d of %d" % (index, 0 if old is None else 1) for index in range(_THREADS)]
            with ThreadPoolExecutor(_THREADS) as pool:
                done = [*pool.map(lambda new, old=old: storage.swap(path, old, new), contents)]
            self._claim(sum(done) == 1, f"`swap`: {sum(done)} of {_THREADS} callers at once succeed (expected 1).")
            winner = contents[done.index(True)]
            self._claim(storage.read(path) == winner, "`swap`: the file is not that of the caller that succeeded.")
            self._claim(not storage.swap(path, b"none", b"b"), "`swap` replaces a file that is not `old`.")
            self._claim(storage.swap(path, winner, b"winner 0"), "`swap` does not replace a file that is `old`.")
        self._claim(storage.swap(path, b"winner 0", None), "`swap` does not remove a file.")
        self._claim(storage.stat(path) is None, "`swap` to None leaves a file.")

    def check_deletion(self) -> None:
        """Delete what the checks wrote, each file twice."""
        storage = self._storage
        for path in (
            self._file,
            self._join_path("names", "e.file"),
            *(self._join_path("names", n, "file") for n in _NAMES),
        ):
            for _ in range(2):
                storage.delete(path)
            self._claim(storage.stat(path) is None, f"`delete` leaves {path}.")

    def _join_path(self, *names: str) -> str:
        return self._storage.join(self._folder, *names)

    def _write(self, path: str, data: bytes, *, replace: bool = True) -> None:
        with self._storage.create(path, replace=replace) as file:
            file.write(data)

    def _abort(self, path: str) -> None:
        """Write a part of a file, and leave the context with an error, after which the file must not exist."""
        with contextlib.suppress(ZeroDivisionError), self._storage.create(path) as file:
            file.write(b"part")
            raise ZeroDivisionError

    def _claim(self, is_kept: bool, broken: str) -> None:
        if not is_kept:
            raise AssertionError(f"{self._folder}: {broken}")


def _scan_key(path: str, is_folder: bool, *, deep: bool) -> bytes:
    """Return what orders an entry: its path, or its name with a `/` after that of a folder."""
    name = path if deep else path.rstrip("/").rpartition("/")[2]
    return f"{name}/".encode() if is_folder else name.encode()

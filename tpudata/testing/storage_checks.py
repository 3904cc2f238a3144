"""Checks for the tests of packages that add a storage: whether it keeps what `tpudata.storage.Storage` promises."""

from __future__ import annotations

import contextlib
import itertools
from concurrent.futures import ThreadPoolExecutor

from tpudata.console.tables import count_text
from tpudata.errors import StorageError
from tpudata.storage import Storage, storage_for

_DATA = bytes(range(256)) * 40
# Names of folders that break code which takes paths for URLs or ASCII.
_NAMES = ("a b", "c%41", "d#1", "e", "é", "🐈")
# Offsets and lengths, also beyond the end of the data.
_RANGES = ((0, 1), (3, 4), (0, len(_DATA)), (len(_DATA) - 2, 9), (len(_DATA), 3), (5, 0))
_THREAD_COUNT = 8


def check_storage(folder: str) -> None:
    """Write, read, list and delete files in a folder, and check each promise of its storage.

    Args:
        folder: an empty folder, or one that does not exist, such as `share://name/test`. Its files are deleted at the end.

    Raises:
        AssertionError: a promise is broken; the message says which one.
        StorageError: the folder cannot be written or read at all.
    """
    check = _StorageCheck(folder)
    check.check_writing()
    check.check_reading()
    check.check_listing()
    check.check_scans()
    check.check_absent_files()
    check.check_swap()
    check.check_deletion()


class _StorageCheck:
    """The checks of a storage; later ones need the files of earlier ones.

    Args:
        folder: folder that they write to.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._storage: Storage = storage_for(folder)
        self._file = self._join_path("whole")

    def check_writing(self) -> None:
        """Check that a file appears whole, once it is complete, or not at all."""
        storage, path = self._storage, self._file
        self._require(storage.stat(path) is None, f"{path} exists already. Pass an empty folder.")
        storage.check_writable(path)
        self._require(storage.stat(path) is None, f"`check_writable` leaves {path} there.")
        with storage.create(path) as file:
            file.write(_DATA[:100])
            file.writelines([_DATA[100:200], _DATA[200:]])
            self._require(storage.stat(path) is None, f"{path} is visible before `create` has ended.")
        self._require(storage.read(path) == _DATA, f"{path} does not have the bytes that were written.")
        self._abort(path)
        self._require(storage.read(path) == _DATA, "a `create` that ends in an error changes the file that was there.")
        self._abort(self._join_path("aborted"))
        self._require(
            storage.stat(self._join_path("aborted")) is None, "a `create` that ends in an error leaves a file."
        )
        self._write(path, b"other")
        self._require(storage.read(path) == b"other", "`create` does not replace a file.")
        self._write(path, b"")
        self._require(storage.read(path) == b"", "an empty file is not read as one.")
        self._write(path, _DATA)
        # A storage may accept or reject the same bytes.
        with contextlib.suppress(StorageError):
            self._write(path, _DATA, replace=False)
        self._require(storage.read(path) == _DATA, "`create` with replace=False damages a file of the same bytes.")

    def check_reading(self) -> None:
        """Check that every way of reading returns the bytes that were written, even in many threads."""
        storage, path = self._storage, self._file
        # `size` is only the probable size, so a wrong one must not change the result.
        for size in (None, len(_DATA), 1, 2 * len(_DATA)):
            self._require(storage.read(path, size) == _DATA, f"`read` with size={size} does not return the whole file.")
        for (offset, length), is_checked in itertools.product(_RANGES, (False, True)):
            storage.expect(path, offset, length)
            part = storage.read_range(path, offset, length, is_checked=is_checked)
            expected_part = _DATA[offset : offset + length]
            self._require(
                part == expected_part,
                f"`read_range` of {length} bytes from {offset} returns different bytes (got {count_text(len(part), 'byte')},"
                f" expected {len(expected_part)} of {len(_DATA)}).",
            )
        with storage.open(path) as file:
            self._require(
                (file.read(7), file.read()) == (_DATA[:7], _DATA[7:]), "`open` does not read from start to end."
            )
        # A hint never raises, even for a file that does not exist.
        storage.expect(self._join_path("none"), 0, 1)
        with ThreadPoolExecutor(_THREAD_COUNT) as pool:
            offsets = range(0, len(_DATA), 100)
            parts = pool.map(lambda offset: storage.read_range(path, offset, 100), offsets)
            self._require(b"".join(parts) == _DATA, f"{_THREAD_COUNT} threads read different bytes than one.")
        entry = storage.stat(path)
        self._require(
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
        self._require(
            [(entry.name, entry.is_folder, entry.size) for entry in entries] == [(name, True, 0) for name in names],
            f"`list` does not return the folders that were written, in order (got {[entry.name for entry in entries]},"
            f" expected {names}).",
        )
        for entry in entries:
            (file,) = storage_for(entry.path).list(entry.path)
            data = storage_for(file.path).read(file.path)
            self._require(
                (file.name, file.size, data) == ("file", len(data), entry.name.encode()),
                f"{file.path}, as `list` returns it, is not the file that was written below {entry.name!r}.",
            )
        folder_entry = storage.stat(self._join_path("names"))
        is_folder = folder_entry is not None and folder_entry.is_folder
        self._require(is_folder, f"`stat` of a folder is not one (got {folder_entry}).")

    def check_scans(self) -> None:
        """Check `scan` against a whole listing: with a limit it returns the first entries, and between `cuts` all of them."""
        storage, folder = self._storage, self._join_path("names")
        self._write(self._join_path("names", "e.file"), b"1")
        # One file or folder for each name, and the file that was just written.
        entry_count = len(_NAMES) + 1
        for deep in (False, True) if storage.lists_deep else (False,):
            entries = [*storage.scan(folder, deep=deep)]
            keys = [_make_scan_key(entry.path, entry.is_folder, deep=deep) for entry in entries]
            paths = [entry.path for entry in entries]
            self._require(len(paths) == entry_count, f"`scan` with deep={deep} lists {len(paths)} of {entry_count}.")
            self._require(keys == sorted(keys), f"`scan` with deep={deep} is not in the order of names (got {paths}).")
            for limit in (1, 3):
                first_paths = [entry.path for entry in storage.scan(folder, limit=limit, deep=deep)]
                self._require(
                    first_paths == paths[:limit],
                    f"`scan` with limit={limit} does not return the first (got {first_paths}).",
                )
            for cuts in (storage.cuts(folder, deep=deep), ("c", "e.", "f")):
                self._require([*cuts] == sorted(set(cuts)), f"`cuts` are not in ascending order (got {[*cuts]}).")
                paths_between_cuts = [
                    entry.path
                    for start, stop in zip(("", *cuts), (*cuts, None), strict=True)
                    for entry in storage.scan(folder, start=start, stop=stop, deep=deep)
                ]
                self._require(
                    paths_between_cuts == paths,
                    f"`scan` between {[*cuts]} with deep={deep} returns other entries than the whole (got {paths_between_cuts},"
                    f" expected {paths}).",
                )

    def check_absent_files(self) -> None:
        """Check that `stat` of a path that does not exist is None, and that reading and listing it is a StorageError."""
        storage, path = self._storage, self._join_path("none")
        self._require(storage.stat(path) is None, f"`stat` of {path}, which does not exist, is not None.")
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
        """Check that one of many concurrent callers of `swap` succeeds, and the others change nothing."""
        storage, path = self._storage, self._join_path("swapped")
        self._require(not storage.swap(path, b"a", b"b"), "`swap` replaces a file that does not exist.")
        # First the callers create a file, then they replace it.
        for attempt, old in enumerate((None, b"old")):
            contents = [b"%d of attempt %d" % (caller, attempt) for caller in range(_THREAD_COUNT)]
            with ThreadPoolExecutor(_THREAD_COUNT) as pool:
                successes = [*pool.map(lambda new, old=old: storage.swap(path, old, new), contents)]
            success_count = sum(successes)
            self._require(
                success_count == 1, f"`swap`: {success_count} of {_THREAD_COUNT} callers at once succeed (expected 1)."
            )
            winner = contents[successes.index(True)]
            self._require(storage.read(path) == winner, "`swap`: the file is not that of the caller that succeeded.")
            self._require(not storage.swap(path, b"none", b"b"), "`swap` replaces a file that is not `old`.")
            self._require(storage.swap(path, winner, b"old"), "`swap` does not replace a file that is `old`.")
        self._require(storage.swap(path, b"old", None), "`swap` does not remove a file.")
        self._require(storage.stat(path) is None, "`swap` to None leaves a file.")

    def check_deletion(self) -> None:
        """Delete what the checks wrote, and check that a second deletion of a file is not an error."""
        storage = self._storage
        for path in (
            self._file,
            self._join_path("names", "e.file"),
            *(self._join_path("names", name, "file") for name in _NAMES),
        ):
            storage.delete(path)
            storage.delete(path)
            self._require(storage.stat(path) is None, f"`delete` leaves {path}.")

    def _join_path(self, *names: str) -> str:
        return self._storage.join(self._folder, *names)

    def _write(self, path: str, data: bytes, *, replace: bool = True) -> None:
        with self._storage.create(path, replace=replace) as file:
            file.write(data)

    def _abort(self, path: str) -> None:
        """Write a part of a file, and leave the context of `create` with an error."""
        # An error that no storage raises.
        with contextlib.suppress(ZeroDivisionError), self._storage.create(path) as file:
            file.write(b"part")
            raise ZeroDivisionError

    def _require(self, is_kept: bool, message: str) -> None:
        """Raise AssertionError with this message unless a promise is kept, also under `python -O`."""
        if not is_kept:
            raise AssertionError(f"{self._folder}: {message}")


def _make_scan_key(path: str, is_folder: bool, *, deep: bool) -> bytes:
    """Return the sort key of an entry of `scan`: its path if the scan is deep, otherwise its name; with a `/` for a folder."""
    name = path if deep else path.rstrip("/").rpartition("/")[2]
    return f"{name}/".encode() if is_folder else name.encode()

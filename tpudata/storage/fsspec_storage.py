"""Stores that fsspec supports: s3://, abfs://, hdfs:// and others, each through its own package.

fsspec has no checksums, and conditional writes only for some stores. So data is compared with the size that the store states, and
ranges are read twice. If two runs begin in one folder at the same moment, both may claim it, unless the store's package can create
a file exclusively (s3fs can). The store's package retries failing requests.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import posixpath
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, BinaryIO

from tpudata.error_text.lines import one_line
from tpudata.errors import MissingExtraError, StorageError, StorageUnavailableError, TpudataError
from tpudata.storage.interface import Entry
from tpudata.storage.limits import request_limits
from tpudata.storage.local.local_storage import TEMPORARY_PREFIX
from tpudata.storage.objects.checked_storage import CheckedStorage
from tpudata.storage.objects.errors import AbsentError, ConflictError, RangeError, TimeLimitError, UnprovenError
from tpudata.storage.objects.object_store import Content, Description
from tpudata.storage.objects.retries import Retries, RetryPolicy

_BLOCK_BYTES = 8 << 20
# Schemes whose uploads can be discarded: their objects are written in place, objects of other schemes under a temporary name.
_DISCARDABLE_SCHEMES = ("s3", "s3a")
# Errors about one path; any other error is one of the store or the connection.
_PATH_ERRORS = (FileNotFoundError, IsADirectoryError, NotADirectoryError, PermissionError, AbsentError)


def is_fsspec_scheme(scheme: str) -> bool:
    """Return whether fsspec has a package for a scheme.

    Raises:
        MissingExtraError: fsspec is not installed.
    """
    try:
        from fsspec.registry import known_implementations
    except ImportError:
        raise MissingExtraError(f"{scheme}://", "fsspec") from None
    return scheme in known_implementations


class FsspecStorage(CheckedStorage):
    """A store through fsspec; `Storage` describes the methods.

    Credentials and endpoints come from fsspec's configuration (FSSPEC_S3_ENDPOINT_URL, ~/.config/fsspec/conf.json) and from
    the store's package.

    Args:
        scheme: scheme of the paths, such as `"s3"`.

    Raises:
        StorageError: fsspec's package for the scheme is not installed.
    """

    def __init__(self, scheme: str) -> None:
        super().__init__(_FsspecObjects(scheme))


class _FsspecObjects:
    """The calls of fsspec's file systems; `ObjectStore` describes them."""

    has_checksums = False
    # Not every store lists trees.
    lists_deep = False

    def __init__(self, scheme: str) -> None:
        import fsspec

        try:
            # Imports the store's package, to report now if it is missing.
            fsspec.get_filesystem_class(scheme)
        except ImportError as error:
            raise StorageError(f"{scheme}://: {error}") from None
        self._fsspec = fsspec
        self._scheme = scheme
        # The store's package retries failed requests, so only answers that may be incomplete are requested again here.
        self.retries = Retries(scheme, _choose_policy, lambda error: isinstance(error, UnprovenError))

    def translate_errors(self, action: str, path: str) -> AbstractContextManager[None]:
        return _translate_errors(action, path)

    def scan(self, folder: str, start: str, stop: str | None, limit: int | None, *, deep: bool) -> Iterator[Entry]:
        """Yield the entries of a folder, which fsspec lists whole, in one call."""
        assert not deep, "fsspec lists folder by folder"
        with _translate_errors("listed", folder):
            filesystem, store_path = self._locate(folder)
            listing = filesystem.ls(store_path, detail=True)
            # Stores without folders list a missing folder as empty.
            if not listing and self.find(folder) is None:
                raise StorageError(f"{folder} could not be listed: there is nothing below it. Check the path.")
        # Pairs of a name to sort by and an entry.
        named_entries = []
        for info in listing:
            name = info["name"].rstrip("/").rpartition("/")[2]
            entry = _make_entry(f"{folder.rstrip('/')}/{name}", info)
            # Some stores list an empty object that marks the folder itself.
            if info["name"].strip("/") != store_path.strip("/"):
                named_entries.append((f"{name}/" if entry.is_folder else name, entry))
        entries_in_range = (
            entry for name, entry in sorted(named_entries) if start <= name and (stop is None or name < stop)
        )
        yield from itertools.islice(entries_in_range, limit)

    def cuts(self, folder: str, *, deep: bool) -> Sequence[str]:
        """Return no cuts: a part of a folder takes as long to list as all of it."""
        del folder, deep
        return ()

    def find(self, path: str) -> Entry | None:
        """Return the file or folder at a path; None if neither exists."""
        info = self._look_up(path)
        return None if info is None else _make_entry(path, info)

    def describe(self, path: str) -> Description | None:
        """Return the description of a file; None if it does not exist or is a folder; StorageError if the store states no size."""
        info = self._look_up(path)
        if info is None or info["type"] == "directory":
            return None
        if info["size"] is None:
            raise StorageError(
                f"{path} could not be read: the store does not state its size. Copy it to another store."
            )
        return Description(int(info["size"]))

    def get(self, path: str, span: tuple[int, int] | None, version: int | None) -> Content:
        """Return the bytes of a file: all of them, or `span` (offset and length).

        Raises:
            AbsentError: the file does not exist.
            RangeError: the span begins at or after the end of the file, and the store rejects it.
        """
        del version  # fsspec has no versions.
        filesystem, store_path = self._locate(path)
        try:
            if span is None:
                return Content(bytes(filesystem.cat_file(store_path)), is_whole=True)
            offset, length = span
            data = bytes(filesystem.cat_file(store_path, start=offset, end=offset + length))
            return Content(data, is_whole=False, offset=offset)
        except FileNotFoundError as error:
            raise AbsentError(404, _format_reason(error)) from error
        except Exception as error:
            # Some stores reject a range that begins at or after the end of the file.
            if span is None or span[0] < filesystem.info(store_path)["size"]:
                raise
            raise RangeError(416, _format_reason(error)) from error

    def remove(self, path: str, version: int | None) -> None:
        """Remove a file; AbsentError if it does not exist."""
        del version  # fsspec has no versions.
        filesystem, store_path = self._locate(path)
        try:
            filesystem.rm_file(store_path)
        except FileNotFoundError as error:
            raise AbsentError(404, _format_reason(error)) from error

    def put(self, path: str, data: bytes, version: int | None) -> None:
        """Write a small file; with `version` None, ConflictError if it exists. Any other `version` replaces what is there."""
        filesystem, store_path = self._locate(path)
        # With this mode, an existing file is an error: for some stores atomically, for others after a check.
        options = {"mode": "create"} if version is None else {}
        try:
            filesystem.pipe_file(store_path, data, **options)
        except FileExistsError as error:
            raise ConflictError(412, _format_reason(error)) from error

    @contextlib.contextmanager
    def write(self, path: str, *, replace: bool) -> Iterator[BinaryIO]:
        """Yield a file to write to, which appears at `path` when the context ends without an error.

        If the store can discard an upload, the file is written in place, otherwise under a temporary name and moved. With
        `replace=False`, an existing file stays and is compared with the written bytes.
        """
        with _translate_errors("written", path):
            filesystem, store_path = self._locate(path)
            keeps_existing = not replace and filesystem.exists(store_path)
        if keeps_existing:
            with self._compare_with_existing(path) as comparison:
                yield comparison
            return
        with _translate_errors("written", path):
            folder = posixpath.dirname(store_path)
            filesystem.makedirs(folder, exist_ok=True)
            can_discard = self._scheme in _DISCARDABLE_SCHEMES
            written_path = store_path if can_discard else f"{folder}/{TEMPORARY_PREFIX}{uuid.uuid4().hex}"
            options = {"autocommit": False} if can_discard else {}
            file = filesystem.open(written_path, "wb", **options)
        try:
            with _translate_errors("written", path, error_class=OSError):
                yield file
            with _translate_errors("written", path):
                file.close()
                if can_discard:
                    file.commit()
                else:
                    filesystem.mv(written_path, store_path)
        except BaseException:
            with contextlib.suppress(Exception):
                if can_discard:
                    file.discard()
                    # Without this, garbage collection would write the open file after all.
                    file.closed = True
                else:
                    file.close()
                    filesystem.rm_file(written_path)
            raise

    @contextlib.contextmanager
    def _compare_with_existing(self, path: str) -> Iterator[BinaryIO]:
        """Yield a temporary file to write to; at the end, StorageError unless the existing file has the same bytes.

        Another attempt at the same work may have written the existing file.
        """
        filesystem, store_path = self._locate(path)
        with tempfile.TemporaryFile() as written_file:
            yield written_file
            written_file.seek(0)
            with (
                _translate_errors("written", path),
                filesystem.open(store_path, "rb", block_size=_BLOCK_BYTES) as existing_file,
            ):
                is_equal = _compute_digest(written_file) == _compute_digest(existing_file)
        if not is_equal:
            raise StorageError(
                f"{path} could not be written: it exists already, with different bytes. Remove it, or write elsewhere."
            )

    def check_writable(self, path: str) -> None:
        """Raise StorageError if nothing can be written below a path: write an empty file, and remove it."""
        probe = f"{path.rstrip('/')}/.tpudata-{uuid.uuid4().hex}"
        with _translate_errors("written", path):
            filesystem, store_path = self._locate(probe)
            filesystem.pipe_file(store_path, b"")
            filesystem.rm_file(store_path)

    def _look_up(self, path: str) -> dict[str, Any] | None:
        """Return fsspec's description of a file or folder; None if it does not exist."""
        filesystem, store_path = self._locate(path)
        try:
            return dict(filesystem.info(store_path))
        except (FileNotFoundError, NotADirectoryError):
            return None

    def _locate(self, path: str) -> tuple[Any, str]:
        """Return fsspec's file system for a path, cached in each process, and the path within it."""
        # Cached listings would lack the files that other processes have written since.
        filesystem, store_path = self._fsspec.url_to_fs(path, use_listings_cache=False)
        return filesystem, str(store_path)


def _choose_policy() -> RetryPolicy:
    """Return the policy for retries with the limit that applies to this process now."""
    return RetryPolicy(limit=request_limits().retry_seconds)


def _compute_digest(file: BinaryIO) -> bytes:
    """Return the SHA-256 of an open file, from its current position on."""
    digest = hashlib.sha256()
    for part in iter(lambda: file.read(_BLOCK_BYTES), b""):
        digest.update(part)
    return digest.digest()


def _make_entry(path: str, info: dict[str, Any]) -> Entry:
    """Return the entry of a path from fsspec's description of it; a size that the store does not state is 0."""
    is_folder = info["type"] == "directory"
    name = path.rstrip("/").rpartition("/")[2]
    return Entry(path, name, 0 if is_folder else int(info["size"] or 0), is_folder)


@contextlib.contextmanager
def _translate_errors(action: str, path: str, error_class: type[Exception] = Exception) -> Iterator[None]:
    """Turn an exception of a store's package into an error that names the path.

    Args:
        action: what could not be done, such as "read".
        path: path of the file or folder, for the message.
        error_class: class of the exceptions to translate. While a file is written, exceptions of other classes are the caller's.

    Raises:
        StorageError: the exception is about the path.
        StorageUnavailableError: the exception is about the store or the connection.
        TpudataError, ConflictError: as raised, unchanged.
    """
    try:
        yield
    except (TpudataError, ConflictError):
        raise
    except _PATH_ERRORS as error:
        raise StorageError(
            f"{path} could not be {action}: {_format_reason(error)}. Check the path and your access."
        ) from error
    except error_class as error:
        raise StorageUnavailableError(
            f"{path} could not be {action}: {_format_reason(error)}. Check the store, and run again."
        ) from error


def _format_reason(error: BaseException) -> str:
    """Return the reason of an error on one line."""
    if isinstance(error, AbsentError):
        return error.message
    if isinstance(error, TimeLimitError):
        return f"{error.__cause__}, until the time limit of retries"
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return one_line(f"{type(error).__name__}: {text}")

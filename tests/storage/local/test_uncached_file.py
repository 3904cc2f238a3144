"""Files written past the page cache have the bytes of any other file, for any buffer and any answer of the system.

Which bytes pass the page cache, and in which pieces, shows in no file.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpudata.errors import StorageError
from tpudata.storage import LocalStorage
from tpudata.storage.local.uncached_file import BUFFER_BYTES, UncachedFile, new_buffer

SIZE = 4 * mmap.PAGESIZE
DATA = np.random.default_rng(0).bytes(SIZE)
# What is written: bytes of some length as one of several types, or nothing but a flush.
WRITES = st.lists(st.tuples(st.sampled_from(["bytes", "view", "array", "lines", "flush"]), st.integers(0, 3 * SIZE)))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "file"


@given(WRITES)
def test_file_holds_the_bytes_that_were_written(writes: list[tuple[str, int]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path, due = Path(folder, "file"), b""
        with UncachedFile(path, new_buffer(SIZE)) as file:
            for kind, size in writes:
                data = np.random.default_rng(size).bytes(size)
                if kind == "flush":
                    file.flush()
                    assert path.read_bytes() == due
                    continue
                if kind == "lines":
                    file.writelines([data[: size // 3], data[size // 3 :]])
                elif kind == "array":
                    data = data[: size // 8 * 8]
                    assert file.write(np.frombuffer(data, np.int64)) == len(data)
                else:
                    assert file.write(data if kind == "bytes" else memoryview(data)) == size
                due += data
                assert file.tell() == len(due)
        assert path.read_bytes() == due


def test_writes_only_full_buffers_past_the_page_cache(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    write = os.write

    def watched(descriptor: int, data: memoryview) -> int:
        seen.append((len(data), bool(fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_DIRECT)))
        return write(descriptor, data)

    monkeypatch.setattr(os, "write", watched)
    with UncachedFile(path, new_buffer(SIZE)) as file:
        file.write(DATA[:100])
        file.write(2 * DATA)
    # Not every file system takes this; those that CI runs on may be any.
    assert seen in ([(SIZE, True), (SIZE, True), (100, False)], [(SIZE, False), (SIZE, False), (100, False)])
    assert path.read_bytes() == DATA[:100] + 2 * DATA


@pytest.fixture(params=["flag", "write", "cut"])
def rejecting(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A system that rejects the flag, or any write past the cache, or cuts the first write short at no boundary."""
    control, write, cut = fcntl.fcntl, os.write, [7]

    def no_flag(descriptor: int, command: int, flags: int = 0) -> int:
        if command == fcntl.F_SETFL and flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, "no such flag here")
        return control(descriptor, command, flags)

    def aligned(descriptor: int, data: memoryview) -> int:
        direct = control(descriptor, fcntl.F_GETFL) & os.O_DIRECT
        if cut and request.param == "cut":
            return write(descriptor, bytes(data[: cut.pop()])) if not direct else _plainly(descriptor, data, cut.pop())
        if direct and (request.param == "write" or os.lseek(descriptor, 0, os.SEEK_CUR) % 512):
            raise OSError(errno.EINVAL, "not aligned")
        return write(descriptor, data)

    def _plainly(descriptor: int, data: memoryview, size: int) -> int:
        flags = control(descriptor, fcntl.F_GETFL)
        control(descriptor, fcntl.F_SETFL, flags & ~os.O_DIRECT)
        written = write(descriptor, bytes(data[:size]))
        control(descriptor, fcntl.F_SETFL, flags)
        return written

    if request.param == "flag":
        monkeypatch.setattr(fcntl, "fcntl", no_flag)
    else:
        monkeypatch.setattr(os, "write", aligned)


@pytest.mark.usefixtures("rejecting")
def test_writes_the_file_if_the_system_rejects_direct_writes(path: Path) -> None:
    with UncachedFile(path, new_buffer(SIZE)) as file:
        file.writelines([DATA[:1000], 3 * DATA, DATA[:10]])
    assert path.read_bytes() == DATA[:1000] + 3 * DATA + DATA[:10]


def test_rejects_and_keeps_an_existing_file(path: Path) -> None:
    path.write_bytes(b"old")
    with pytest.raises(FileExistsError):
        UncachedFile(path, new_buffer(SIZE))
    assert path.read_bytes() == b"old"


def test_raises_disk_errors_and_closes_the_file(path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    file = UncachedFile(path, new_buffer(SIZE))
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (2 * SIZE, hard))
        with pytest.raises(OSError, match="File too large"):
            file.write(3 * DATA)
        with pytest.raises(OSError, match="File too large"):
            file.close()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert file.closed
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(file.fileno())


def test_concurrent_files_share_no_buffer(tmp_path: Path) -> None:
    storage, large = LocalStorage(), np.random.default_rng(1).bytes(BUFFER_BYTES + 5)
    paths = [str(tmp_path / name) for name in "abc"]
    with storage.create(paths[0]) as one, storage.create(paths[1]) as other:
        one.write(large)
        other.write(large[::-1])
    with pytest.raises(StorageError, match="could not be written: no"):
        write_and_fail(storage, paths[2])
    with storage.create(paths[2]) as third:
        third.write(b"short")
    assert [Path(path).read_bytes() for path in paths] == [large, large[::-1], b"short"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b", "c"]


def write_and_fail(storage: LocalStorage, path: str) -> None:
    with storage.create(path) as file:
        file.write(b"never seen")
        raise OSError("no")


def test_rejects_writes_to_a_closed_file(path: Path, tmp_path: Path) -> None:
    buffer = new_buffer(SIZE)
    with UncachedFile(path, buffer) as closed:
        closed.write(b"closed")
    with UncachedFile(tmp_path / "other", buffer) as other:
        other.write(b"one ")
        for data in (b"stray", b"", memoryview(b"stray"), 2 * DATA):
            with pytest.raises(ValueError, match="closed file"):
                closed.write(data)
        other.write(b"two")
    assert (path.read_bytes(), (tmp_path / "other").read_bytes()) == (b"closed", b"one two")


def test_writes_arrays_of_any_dtype(path: Path) -> None:
    arrays = [np.arange(6, dtype=">i4"), np.zeros((3, 0)), np.float64(2.5), np.ones((2, 3), [("a", "i4"), ("b", "u1")])]
    with UncachedFile(path, new_buffer(SIZE)) as file:
        assert [file.write(array) for array in arrays] == [24, 0, 8, 30]
        for data in ("text", None, np.arange(9)[::2], memoryview(DATA)[::2]):
            with pytest.raises(TypeError):
                file.write(data)
    assert path.read_bytes() == b"".join(array.tobytes() for array in arrays)


def test_discard_closes_the_file_without_flushing(path: Path) -> None:
    file = UncachedFile(path, new_buffer(SIZE))
    file.write(DATA + b"rest")
    file.discard()
    assert (file.closed, path.read_bytes()) == (True, DATA)


def test_a_failed_open_prints_no_warning(tmp_path: Path) -> None:
    program = """
import sys
from tpudata.storage.local.uncached_file import UncachedFile, new_buffer
try:
    UncachedFile(sys.argv[1], new_buffer())
except FileNotFoundError as error:
    print("rejected")
"""
    command = [sys.executable, "-X", "dev", "-c", program, str(tmp_path / "none" / "file")]
    done = subprocess.run(command, cwd=Path(__file__).parents[3], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("rejected\n", "")


def test_works_without_large_pages(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Mapped(mmap.mmap):
        def madvise(self, *_: int) -> None:
            raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr(mmap, "mmap", Mapped)
    with UncachedFile(path, new_buffer(SIZE)) as file:
        file.write(DATA)
    assert path.read_bytes() == DATA


@pytest.mark.parametrize("failing", ["write", "fsync", "close"])
@pytest.mark.parametrize("error", [OSError(errno.EIO, "Input/output error"), KeyboardInterrupt()], ids=["disk", "user"])
def test_a_failed_write_keeps_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str, error: BaseException
) -> None:
    storage, path, called = LocalStorage(), tmp_path / "file", []
    path.write_bytes(b"old")
    right = getattr(os, failing)

    def fail(descriptor: int, *data: memoryview) -> None:
        called.append(failing)
        if failing == "close":
            right(descriptor)
        raise error

    def write() -> None:
        with storage.create(str(path)) as file:
            file.write(bytes(BUFFER_BYTES + 5))

    monkeypatch.setattr(os, failing, fail)
    with pytest.raises((StorageError, KeyboardInterrupt)) as found:
        write()
    monkeypatch.undo()
    assert called == [failing]
    assert isinstance(found.value, KeyboardInterrupt) or f"{path} could not be written: Input/output" in str(
        found.value
    )
    assert [(left.name, left.read_bytes()) for left in tmp_path.iterdir()] == [("file", b"old")]
    write()
    assert path.read_bytes() == bytes(BUFFER_BYTES + 5)


def test_reports_the_write_error_even_if_cleanup_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def read_only(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(Path, "unlink", read_only)
    with pytest.raises(StorageError, match="could not be written: no"):
        write_and_fail(LocalStorage(), str(tmp_path / "file"))

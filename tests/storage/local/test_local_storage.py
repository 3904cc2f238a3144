"""Local files: every promise of `Storage`, and writes that are whole or nothing."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO

import pytest

from tpudata.errors import StorageError
from tpudata.storage import Entry, LocalStorage, storage_for

STORAGE = LocalStorage()
_EIO = "^/proc/self/mem could not be read: Input/output error"


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_reads_what_was_written(tmp_path: Path) -> None:
    path = STORAGE.join(str(tmp_path), "new", "folder", "file")
    assert path == str(tmp_path / "new" / "folder" / "file")
    with STORAGE.create(path) as file:
        file.write(b"0123456789")
        assert not Path(path).exists()
    assert STORAGE.read(path) == b"0123456789"
    assert STORAGE.read_range(path, 3, 4) == b"3456"
    assert STORAGE.read_range(path, 8, 10) == b"89"
    assert STORAGE.read_range(path, 20, 10) == b""
    with STORAGE.open(path) as opened:
        assert opened.read(4) == b"0123"
    assert STORAGE.stat(path) == Entry(path, "file", 10, False)
    assert names(Path(path).parent) == ["file"]


def test_reads_large_and_empty_files_whole(tmp_path: Path) -> None:
    data = os.urandom(3 << 20)
    path = tmp_path / "file"
    path.write_bytes(data)
    assert STORAGE.read(str(path)) == data
    assert STORAGE.read_range(str(path), 5, 2 << 20) == data[5 : 5 + (2 << 20)]
    path.write_bytes(b"")
    assert (STORAGE.read(str(path)), STORAGE.read_range(str(path), 0, 9)) == (b"", b"")


@pytest.mark.skipif(not hasattr(os, "posix_fadvise"), reason="a system without such advice")
def test_expect_advises_the_system_of_the_range(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[int, int, int]] = []
    monkeypatch.setattr(os, "posix_fadvise", lambda _file, *advice: told.append(advice))
    path = tmp_path / "file"
    path.write_bytes(b"0123456789")

    def not_there(*_arguments: object) -> int:
        raise BlockingIOError

    monkeypatch.setattr(os, "preadv", not_there, raising=False)
    STORAGE.expect(str(path), 3, 4)
    # What cannot be read is reported by who reads it.
    STORAGE.expect(str(tmp_path / "none"), 0, 1)
    assert told == [(3, 4, os.POSIX_FADV_WILLNEED)]


@pytest.mark.skipif(not hasattr(os, "RWF_NOWAIT"), reason="a system that does not say what it has in its memory")
def test_expect_skips_cached_ranges(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[int, int, int]] = []
    monkeypatch.setattr(os, "posix_fadvise", lambda _file, *advice: told.append(advice))
    path = tmp_path / "file"
    path.write_bytes(bytes(1 << 20))
    STORAGE.read(str(path))
    with path.open("rb") as file:
        try:
            os.preadv(file.fileno(), [bytearray(1)], 0, os.RWF_NOWAIT)
        except OSError as error:
            if error.errno != errno.EOPNOTSUPP:
                raise
            pytest.skip("a file system that does not say what it has in its memory, such as tmpfs")
    STORAGE.expect(str(path), 0, 1 << 20)
    assert told == []


@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="no files whose size is not known")
def test_reads_a_file_of_unknown_size() -> None:
    assert Path("/proc/self/cmdline").stat().st_size == 0
    assert STORAGE.read("/proc/self/cmdline") == Path("/proc/self/cmdline").read_bytes() != b""


def test_handles_short_reads_and_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, pieces = str(tmp_path / "file"), [os.urandom(length) for length in (700, 1, 50_000, 0, 300)]
    read, pread, write = os.read, os.pread, os.write
    monkeypatch.setattr(os, "read", lambda fd, length: read(fd, min(length, 1000)))
    monkeypatch.setattr(os, "pread", lambda fd, length, offset: pread(fd, min(length, 1000), offset))
    monkeypatch.setattr(os, "write", lambda fd, data: write(fd, data[:1000]))
    with STORAGE.create(path) as file:
        file.write(b"first")
        file.writelines(pieces)
        file.write(b"last")
    data = b"first" + b"".join(pieces) + b"last"
    assert STORAGE.read(path) == data
    assert STORAGE.read_range(path, 3, 20_000) == data[3:20_003]


def test_writes_many_lines_at_once(tmp_path: Path) -> None:
    path, lines = str(tmp_path / "file"), [b"%d\n" % number for number in range(5000)]
    with STORAGE.create(path) as file:
        file.write(b"head\n")
        file.writelines(lines)
        assert file.tell() == 5 + len(b"".join(lines))
        file.write(b"tail")
    assert Path(path).read_bytes() == b"head\n" + b"".join(lines) + b"tail"


def test_list_is_sorted_and_names_folders(tmp_path: Path) -> None:
    (tmp_path / "b").write_bytes(b"12")
    (tmp_path / "a").mkdir()
    (tmp_path / "c").symlink_to(tmp_path / "nowhere")
    entries = STORAGE.list(str(tmp_path))
    assert [(entry.name, entry.size, entry.is_folder) for entry in entries] == [
        ("a", 0, True),
        ("b", 2, False),
        ("c", 0, False),
    ]
    assert [entry.path for entry in entries] == [str(tmp_path / name) for name in "abc"]


def test_stat_returns_none_for_missing_paths(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert STORAGE.stat(str(tmp_path / "missing")) is None
    assert STORAGE.stat(str(tmp_path / "file" / "below")) is None
    assert STORAGE.stat(str(tmp_path / "a\0b")) is None
    assert STORAGE.stat(str(tmp_path)) == Entry(str(tmp_path), tmp_path.name, 0, True)


def test_replaces_an_existing_file_when_finished(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old and longer")
    with STORAGE.create(str(path)) as file:
        file.write(b"new")
        assert path.read_bytes() == b"old and longer"
    assert path.read_bytes() == b"new"


@pytest.mark.parametrize("error", [ValueError("broken"), KeyboardInterrupt()])
def test_an_error_keeps_only_the_old_file(tmp_path: Path, error: BaseException) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def write_half() -> None:
        with STORAGE.create(str(path)) as file:
            file.write(b"half")
            raise error

    with pytest.raises(type(error)):
        write_half()
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["file"]


def test_a_process_that_dies_leaves_no_file_under_the_name(tmp_path: Path) -> None:
    program = """
import os, sys
from tpudata.storage import LocalStorage
with LocalStorage().create(sys.argv[1]) as file:
    file.write(b"half" * 1_000_000)
    file.flush()
    os._exit(9)
"""
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path / "train-0")], cwd=Path(__file__).parents[3])
    assert done.returncode == 9
    (left,) = tmp_path.iterdir()
    # What is left is hidden: no glob of the shards finds it.
    assert left.name.startswith(".")
    assert list(tmp_path.glob("train-*")) == []


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o027, 0o640), (0o002, 0o664)])
def test_permissions_follow_the_umask(tmp_path: Path, umask: int, mode: int) -> None:
    before = os.umask(umask)
    try:
        with STORAGE.create(str(tmp_path / "file")):
            pass
    finally:
        os.umask(before)
    assert (tmp_path / "file").stat().st_mode & 0o777 == mode


def test_two_writers_of_one_file_do_not_mix(tmp_path: Path) -> None:
    path = str(tmp_path / "file")
    with STORAGE.create(path) as first, STORAGE.create(path) as second:
        first.write(b"first")
        second.write(b"second")
    assert STORAGE.read(path) == b"first"  # The one that ended last.
    assert names(tmp_path) == ["file"]


def test_deletes_a_file_and_ignores_a_missing_one(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    STORAGE.delete(str(tmp_path / "file"))
    STORAGE.delete(str(tmp_path / "file"))
    assert names(tmp_path) == []


def test_errors_name_the_file_and_the_reason(tmp_path: Path) -> None:
    missing = str(tmp_path / "missing")
    with pytest.raises(StorageError, match=f"{missing} could not be read: No such file"):
        STORAGE.read(missing)
    with pytest.raises(StorageError, match=f"{missing} could not be read: No such file"):
        STORAGE.read_range(missing, 0, 1)
    with pytest.raises(StorageError, match=f"{missing} could not be opened: No such file"):
        STORAGE.open(missing)
    with pytest.raises(StorageError, match=f"{missing} could not be listed: No such file"):
        STORAGE.list(missing)
    with pytest.raises(StorageError, match=r"could not be deleted: (Is a directory|Operation not)"):
        STORAGE.delete(str(tmp_path))
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="could not be written: "), STORAGE.create(str(tmp_path / "file" / "x")):
        pass


def write(path: str) -> None:
    with STORAGE.create(path) as file:
        file.write(b"x")


def test_errors_name_a_fix(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    found = {}
    calls: list[tuple[str, Callable[[str], object], str]] = [
        ("read", STORAGE.read, "gone"),
        ("read", STORAGE.read, "."),
        ("opened", STORAGE.open, "circle"),
        ("listed", STORAGE.list, "file"),
        ("looked up", STORAGE.stat, 300 * "n"),
        ("written", write, 230 * "n"),
        ("written", write, "file/x"),
        ("written", write, "."),
    ]
    for done, call, name in calls:
        path = str(tmp_path / name)
        with pytest.raises(StorageError) as error:
            call(path)
        start = f"{path} could not be {done}: "
        assert str(error.value).startswith(start)
        found[done, name[:6]] = str(error.value).removeprefix(start)
    assert found == {
        ("read", "gone"): "No such file or directory. Check whether it was moved or removed.",
        ("read", "."): "Is a directory. It is a folder: pass a file.",
        ("opened", "circle"): "Too many levels of symbolic links. Its links lead in a circle: fix or remove them.",
        ("listed", "file"): "Not a directory. A part of this path is a file: pass another path.",
        ("looked up", "nnnnnn"): found["written", "nnnnnn"],
        (
            "written",
            "nnnnnn",
        ): "File name too long. Use shorter names: most file systems allow 255 bytes, 42 of which are used during writing.",
        ("written", "file/x"): "File exists. There is a file in place of a folder: move it away, or pass another path.",
        ("written", "."): "Is a directory. It is a folder: pass a file.",
    }


@pytest.mark.parametrize(
    ("number", "fix"),
    [
        (errno.EACCES, "Permission denied. Give this account permissions for it"),
        (errno.EROFS, "Read-only file system. Pass a folder elsewhere"),
        (errno.ENOSPC, r"No space left on device. Free space there \(`df -h`"),
        (errno.EDQUOT, r"Disk quota exceeded. Free space there \(`quota -s`"),
        (errno.EMFILE, r"Too many open files. Raise the number of open files of a process \(`ulimit -n`\)."),
        (errno.EIO, "Input/output error. The disk or the connection to it fails"),
        (errno.ENOENT, "No such file or directory. It was removed during writing"),
        (errno.ENOLCK, "No locks available.$"),
    ],
)
def test_errors_of_writing_name_a_fix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, fix: str) -> None:
    def reject(*_: object) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "open", reject)
    with pytest.raises(StorageError, match=f"^{tmp_path}/file could not be written: {fix}"):
        write(str(tmp_path / "file"))


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can become somebody else")
def test_reports_missing_permissions_for_a_folder(tmp_path: Path) -> None:
    program = f"""
import os, sys
from tpudata.errors import StorageError
from tpudata.storage import LocalStorage
os.setuid(65534)
for call in (LocalStorage().list, LocalStorage().stat):
    try:
        call({str(tmp_path / "closed" / "inner")!r})
    except StorageError as error:
        print(error)
"""
    (tmp_path / "closed" / "inner").mkdir(parents=True)
    (tmp_path / "closed").chmod(0o700)
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=Path(__file__).parents[3], capture_output=True, text=True
    )
    said = [line.partition(" (")[0] for line in done.stdout.splitlines()]
    what = "Permission denied. Give this account permissions for it and the folders above it"
    path = tmp_path / "closed" / "inner"
    assert said == [f"{path} could not be listed: {what}", f"{path} could not be looked up: {what}"]


@pytest.mark.parametrize("name", ["pipe", "device"])
def test_rejects_pipes_and_devices_without_waiting(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    if name == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero")
    for call in (lambda: STORAGE.stat(str(path)), lambda: STORAGE.list(str(tmp_path))):
        with pytest.raises(StorageError, match=rf"{path}: neither a file nor a folder\. Move it away"):
            call()


def test_checks_that_a_path_can_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    before = sorted(tmp_path.rglob("*"))
    for path in (tmp_path, tmp_path / "new", tmp_path / "new" / "newer", tmp_path / "file"):
        STORAGE.check_writable(str(path))
    assert sorted(tmp_path.rglob("*")) == before
    with pytest.raises(StorageError, match=rf"^{tmp_path}/file/new could not be written: Not a directory"):
        STORAGE.check_writable(str(tmp_path / "file" / "new"))


@pytest.mark.parametrize("error", [errno.EROFS, errno.EACCES, errno.ENOSPC])
def test_reports_why_a_path_cannot_be_written(error: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def reject(*_: object, **__: object) -> None:
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(os, "open", reject)
    with pytest.raises(StorageError, match=f"^{tmp_path}/new could not be written: {os.strerror(error)}"):
        STORAGE.check_writable(str(tmp_path / "new"))


def test_selects_the_storage_by_the_path(tmp_path: Path) -> None:
    for path in (str(tmp_path), "relative/path", "C:odd", "a://b"[1:]):
        assert isinstance(storage_for(path), LocalStorage)
    with pytest.raises(StorageError, match="no storage for none://"):
        storage_for("none://host/file")


def test_swaps_only_if_the_content_is_as_expected(tmp_path: Path) -> None:
    path = str(tmp_path / "new" / "file")
    assert not STORAGE.swap(path, b"one", b"two")
    assert STORAGE.swap(path, None, b"one")
    assert not STORAGE.swap(path, None, b"two")
    assert not STORAGE.swap(path, b"other", b"two")
    assert STORAGE.read(path) == b"one"
    assert STORAGE.swap(path, b"one", b"two")
    assert not STORAGE.swap(path, b"one", None)
    assert STORAGE.read(path) == b"two"
    assert STORAGE.swap(path, b"two", None)
    assert STORAGE.swap(path, None, None)
    assert names(tmp_path / "new") == []


def test_only_one_of_many_concurrent_swaps_succeeds(tmp_path: Path) -> None:
    path = str(tmp_path / "file")
    standing: bytes | None = None
    with ThreadPoolExecutor(8) as pool:
        for turn in range(20):
            news = [f"{turn} {number}".encode() for number in range(8)]
            done = list(pool.map(STORAGE.swap, [path] * 8, [standing] * 8, news))
            assert done.count(True) == 1
            standing = news[done.index(True)]
            assert STORAGE.read(path) == standing
    assert names(tmp_path) == ["file"]


def test_swaps_without_hard_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise OSError(errno.EPERM, "no links here")

    monkeypatch.setattr(os, "link", fails)
    assert STORAGE.swap(str(tmp_path / "file"), None, b"one")
    assert not STORAGE.swap(str(tmp_path / "file"), None, b"two")
    assert STORAGE.read(str(tmp_path / "file")) == b"one"


def test_a_swap_replaces_no_file_of_another_machine_if_linking_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "file"

    def fails(*_: object) -> None:
        target.write_bytes(b"of another machine")
        raise OSError(errno.ENOSPC, "no room for an entry")

    monkeypatch.setattr(os, "link", fails)
    with pytest.raises(StorageError, match="no room for an entry"):
        STORAGE.swap(str(target), None, b"one")
    assert target.read_bytes() == b"of another machine"


def test_reports_a_swap_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StorageError, match="could not be written"):
        STORAGE.swap(str(tmp_path / "file" / "below"), None, b"one")


def test_scan_lists_entries_in_the_order_of_object_stores(tmp_path: Path) -> None:
    for name in ("b", "a.jpg", "a/x", "a!", "c"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"1" * len(name))
    (tmp_path / "gone").symlink_to(tmp_path / "nowhere")
    found = list(STORAGE.scan(str(tmp_path)))
    # As full names of objects: a/ comes after a.jpg.
    assert [entry.name for entry in found] == ["a!", "a.jpg", "a", "b", "c", "gone"]
    assert sorted(found) == STORAGE.list(str(tmp_path))
    with pytest.raises(StorageError, match="nothing could not be listed"):
        next(STORAGE.scan(str(tmp_path / "nothing")))


@pytest.mark.parametrize("kind", ["fifo", "socket", "device"])
def test_rejects_a_pipe_a_socket_and_a_device_at_once(tmp_path: Path, kind: str) -> None:
    path = str(tmp_path / "pipe")
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(path)
    else:
        path = "/dev/zero"
    calls: list[Callable[[], object]] = [
        lambda: STORAGE.read(path),
        lambda: STORAGE.read(path, 10),
        lambda: STORAGE.read_range(path, 0, 10),
        lambda: STORAGE.open(path),
        lambda: STORAGE.stat(path),
    ]
    STORAGE.expect(path, 0, 10)
    for call in calls:
        with pytest.raises(StorageError, match=f"^{path}: neither a file nor a folder"):
            call()


@pytest.mark.skipif(not Path("/proc/self/mem").exists(), reason="no file of this system always fails")
def test_names_the_file_if_the_disk_fails_during_a_read() -> None:
    # Its first page is never mapped, so that reading it is an EIO.
    path = "/proc/self/mem"
    reads: list[Callable[[BinaryIO], object]] = [
        lambda file: file.read(10),
        lambda file: file.read(),
        lambda file: file.readline(),
    ]
    for read in reads:
        with STORAGE.open(path) as opened, pytest.raises(StorageError, match=_EIO):
            read(opened)
    calls: list[Callable[[], object]] = [lambda: STORAGE.read(path), lambda: STORAGE.read_range(path, 0, 1)]
    for call in calls:
        with pytest.raises(StorageError, match=_EIO):
            call()

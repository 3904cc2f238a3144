"""Local files: every promise of `Storage`, and writes that are whole or nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tpudata.errors import StorageError
from tpudata.storage import Entry, LocalStorage, storage_for

STORAGE = LocalStorage()


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_write_and_read(tmp_path: Path) -> None:
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


def test_stat_of_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert STORAGE.stat(str(tmp_path / "missing")) is None
    assert STORAGE.stat(str(tmp_path / "file" / "below")) is None
    assert STORAGE.stat(str(tmp_path)) == Entry(str(tmp_path), tmp_path.name, 0, True)


def test_an_existing_file_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old and longer")
    with STORAGE.create(str(path)) as file:
        file.write(b"new")
        assert path.read_bytes() == b"old and longer"
    assert path.read_bytes() == b"new"


@pytest.mark.parametrize("error", [ValueError("broken"), KeyboardInterrupt()])
def test_an_error_leaves_the_old_file_and_nothing_else(tmp_path: Path, error: BaseException) -> None:
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
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path / "train-0")], cwd=Path(__file__).parents[2])
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


def test_delete(tmp_path: Path) -> None:
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


def test_the_path_decides_the_storage(tmp_path: Path) -> None:
    for path in (str(tmp_path), "relative/path", "C:odd", "a://b"[1:]):
        assert isinstance(storage_for(path), LocalStorage)
    with pytest.raises(StorageError, match="no storage for ftp://"):
        storage_for("ftp://host/file")

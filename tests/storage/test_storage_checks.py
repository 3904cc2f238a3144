"""`tpudata.testing.check_storage`: our storages and that of the docs pass, and a storage that breaks a promise fails."""

from __future__ import annotations

import contextlib
import re
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from scripts.fake_gcs import FakeGcs
from tests.beam_jobs.plugins import install
from tpudata.storage import Entry, LocalStorage
from tpudata.storage.select import _make_storage
from tpudata.testing import check_storage

PAGE = Path(__file__).parents[2] / "docs" / "convert" / "extending.md"


@pytest.fixture
def _fresh_storages() -> Iterator[None]:
    """A storage lives as long as its process, and those of other tests have another server."""
    _make_storage.cache_clear()
    yield
    _make_storage.cache_clear()


@pytest.mark.usefixtures("_fresh_storages")
@pytest.mark.parametrize("scheme", ["", "file", "gs", "memory", "share"])
def test_check_storage_passes_our_storages(scheme: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with FakeGcs(page=4) as server:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
        server.bucket("b")
        if scheme == "share":
            (code,) = re.findall(
                r"```python\n(from tpudata.storage import LocalStorage\n.*?)```", PAGE.read_text(), re.DOTALL
            )
            names: dict[str, Any] = {}
            exec(compile(code, "share.py", "exec"), names)
            install(monkeypatch, "tpudata.storages", share=names["ShareStorage"])
        folders = {
            "": f"{tmp_path}/new",
            "file": f"file://{tmp_path}/new",
            "gs": "gs://b/new",
            "memory": f"memory://{uuid.uuid4().hex}/new",
            "share": "share://disk/new",
        }
        check_storage(folders[scheme])


class _Prefixed(LocalStorage):
    """PREFIX://PATH is the file PATH; derived classes break one promise."""

    def join(self, base: str, *parts: str) -> str:
        return super().join(base.partition("://")[2] or base, *parts)

    def stat(self, path: str) -> Entry | None:
        return super().stat(path.partition("://")[2] or path)


class Partial(_Prefixed):
    @contextlib.contextmanager
    def create(self, path: str, *, replace: bool = True) -> Iterator[BinaryIO]:
        del replace
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        with open(path, "wb") as file:
            yield file


class Aborted(_Prefixed):
    @contextlib.contextmanager
    def create(self, path: str, *, replace: bool = True) -> Iterator[BinaryIO]:
        del replace
        with contextlib.ExitStack() as stack:
            file = stack.enter_context(super().create(path))
            try:
                yield file
            except ZeroDivisionError:
                stack.close()
                raise


class Once(_Prefixed):
    @contextlib.contextmanager
    def create(self, path: str, *, replace: bool = True) -> Iterator[BinaryIO]:
        del replace
        with super().create(f"{path}.old" if Path(path).exists() else path) as file:
            yield file


class Short(_Prefixed):
    def read_range(self, path: str, offset: int, length: int, *, is_checked: bool = False) -> bytes:
        return super().read_range(path, offset, length)[: length if is_checked else 3]


class Trusting(_Prefixed):
    def read(self, path: str, size: int | None = None) -> bytes:
        return super().read(path)[:size]


class Unsorted(_Prefixed):
    def list(self, folder: str) -> list[Entry]:
        return super().list(folder)[::-1]


class Unlimited(_Prefixed):
    def scan(self, folder: str, *, limit: int | None = None, **chosen: Any) -> Iterator[Entry]:
        del limit
        return super().scan(folder, **chosen)


class Inclusive(_Prefixed):
    def scan(self, folder: str, *, stop: str | None = None, **chosen: Any) -> Iterator[Entry]:
        return super().scan(folder, stop=None if stop is None else f"{stop}~", **chosen)


class Silent(_Prefixed):
    def scan(self, folder: str, **chosen: Any) -> Iterator[Entry]:
        return super().scan(folder, **chosen) if Path(folder).exists() else iter(())


class Racing(_Prefixed):
    def swap(self, path: str, old: bytes | None, new: bytes | None) -> bool:
        del old
        with self.create(path) as file:
            file.write(new or b"")
        return True


class Keeping(_Prefixed):
    def delete(self, path: str) -> None:
        del path


@pytest.mark.usefixtures("_fresh_storages")
@pytest.mark.parametrize(
    ("storage", "promise"),
    [
        (Partial, "whole is visible before `create` has ended"),
        (Aborted, "a `create` that ends in an error changes the file that was there"),
        (Once, "`create` does not replace a file"),
        (Short, "`read_range` of 4 bytes from 3 returns different bytes"),
        (Trusting, "`read` with size=1 does not return the whole file"),
        (Unsorted, "`list` does not return the folders that were written, in order"),
        (Unlimited, "`scan` with limit=1 does not return the first"),
        (Inclusive, "`scan` between .* returns other entries than the whole"),
        (Silent, "a file or folder that does not exist does not raise a StorageError"),
        (Racing, "`swap` replaces a file that does not exist"),
        (Keeping, "`delete` leaves"),
    ],
)
def test_names_the_promise_that_a_storage_breaks(
    storage: type, promise: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch, "tpudata.storages", broken=storage)
    with pytest.raises(AssertionError, match=promise):
        check_storage(f"broken://{tmp_path}/new")


@pytest.mark.usefixtures("_fresh_storages")
def test_passes_the_base_of_the_broken_storages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, "tpudata.storages", broken=_Prefixed)
    check_storage(f"broken://{tmp_path}/new")
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]

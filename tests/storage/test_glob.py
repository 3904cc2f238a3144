from __future__ import annotations

import glob
import os
import socket
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tpudata.errors import StorageError
from tpudata.storage import expand, is_pattern, split_pattern

FILES = [
    "a/1.jpg",
    "a/2.png",
    "a/b/1.jpg",
    "b/1.jpg",
    "b/.hidden.jpg",
    ".h/1.jpg",
    "x.jpg",
    "a/b/c/d/1.jpg",
    "a/[1].jpg",
]


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("tree")
    for name in FILES:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(name.encode())
    return root


PARTS = st.sampled_from(["*", "**", "?", "a", "b", "[ab]", "[!a]", "*.jpg", "1.*", "c", "d", ".*"])


@settings(max_examples=300)
@given(parts=st.lists(PARTS, min_size=1, max_size=5))
def test_matches_what_pythons_glob_matches(tree: Path, parts: list[str]) -> None:
    pattern = "/".join([str(tree), *parts])
    if not is_pattern(pattern):
        return
    found = [entry.path for entry, _ in expand(pattern)] if fixed_is_there(pattern) else []
    # Python's glob gives the folder itself for a ** at the end, some paths twice, and links only where they lead somewhere.
    wanted = {
        path.rstrip("/")
        for path in glob.glob(  # noqa: PTH207
            pattern if parts[-1] != "**" else f"{pattern}/*", recursive=True
        )
    }
    assert sorted(found) == sorted(wanted)


def fixed_is_there(pattern: str) -> bool:
    return Path(split_pattern(pattern)[0]).is_dir()


def test_yields_paths_below_the_fixed_folder(tree: Path) -> None:
    found = {below: entry for entry, below in expand(f"{tree}/a/**/1.jpg")}
    assert set(found) == {"1.jpg", "b/1.jpg", "b/c/d/1.jpg"}
    assert found["b/1.jpg"].path == f"{tree}/a/b/1.jpg"
    assert found["b/1.jpg"].size == len("a/b/1.jpg")


@pytest.mark.parametrize(
    ("pattern", "wanted"),
    [
        ("/data/*/a.jpg", ("/data", ("*", "a.jpg"))),
        ("/*.jpg", ("/", ("*.jpg",))),
        ("*.jpg", (".", ("*.jpg",))),
        ("data/**", ("data", ("**", "*"))),
        ("gs://bucket/x/*", ("gs://bucket/x", ("*",))),
    ],
)
def test_splits_patterns_at_the_first_wildcard(pattern: str, wanted: tuple[str, tuple[str, ...]]) -> None:
    assert split_pattern(pattern) == wanted


def test_expands_relative_patterns(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tree)
    assert {below for _, below in expand("*.jpg")} == {"x.jpg"}


def test_rejects_a_missing_folder(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="nowhere"):
        list(expand(f"{tmp_path}/nowhere/*"))


def test_skips_pipes_that_a_pattern_does_not_match(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a/1.jpg", "b/1.jpg"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_bytes(b"x")
    os.mkfifo(tmp_path / "pipe")
    os.mkfifo(tmp_path / "a" / "pipe")
    # A socket's path has 107 bytes at most.
    monkeypatch.chdir(tmp_path / "b")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("socket")
    for pattern in ("*/*.jpg", "**/*.jpg"):
        assert [below for _, below in expand(f"{tmp_path}/{pattern}")] == ["a/1.jpg", "b/1.jpg"]
    for pattern in ("*", "**/pi*", "*/socket"):
        with pytest.raises(StorageError, match=r"(pipe|socket): neither a file nor a folder"):
            list(expand(f"{tmp_path}/{pattern}"))

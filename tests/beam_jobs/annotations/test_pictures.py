"""Names of pictures in annotation files, compared with their paths.

The rule is a function of two names, and is tried with names of any letters.
"""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from beam_jobs.annotations.pictures import is_same_picture, match_key, without_extension

NAMES = st.text(st.characters(exclude_categories=("Cs", "Cc"), exclude_characters="/\\"), min_size=1)


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("a.jpg", "train/a.jpg"),
        ("train/a.jpg", "train/a.jpg"),
        ("a", "train/a.jpg"),
        ("train/a", "images/train/a.JPEG"),
        ("photo.v2", "photo.v2.png"),
        ("photo.v2.png", "photo.v2.png"),
        (r"C:\data\train\a b.jpg", "train/a b.jpg"),
        ("/home/me/data/a.jpg", "data/a.jpg"),
        ("./a.jpg", "a.jpg"),
        ("größe.jpg", unicodedata.normalize("NFD", "größe.jpg")),
    ],
)
def test_finds_the_same_picture_by_another_name(name: str, path: str) -> None:
    assert is_same_picture(name, path)
    assert match_key(name) == match_key(path)


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("a.jpg", "train/b.jpg"),
        ("a.jpg", "train/a.png"),
        ("a.jpg", "train/ba.jpg"),
        ("val/a.jpg", "train/a.jpg"),
        ("photo", "photo.v2.png"),
        ("", "a.jpg"),
    ],
)
def test_tells_other_pictures_apart(name: str, path: str) -> None:
    assert not is_same_picture(name, path)


@given(folders=st.lists(NAMES, max_size=3), name=NAMES, start=st.integers(0, 3))
def test_the_end_of_a_path_is_the_same_picture(folders: list[str], name: str, start: int) -> None:
    path = "/".join([*folders, f"{name}.jpg"])
    end = "/".join([*folders[start:], f"{name}.jpg"])
    if path.startswith("./") or end.startswith("./"):
        return
    assert is_same_picture(end, path)
    assert is_same_picture(path, end)
    assert match_key(end) == match_key(path)


@pytest.mark.parametrize("name", [".jpg", "a/.png", "a.jpg/b", "a.txt", "a"])
def test_names_without_extension_stay(name: str) -> None:
    assert without_extension(name) == name

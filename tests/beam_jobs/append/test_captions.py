"""Tars with captions and columns, appended to a dataset without any, as earlier versions made them."""

from __future__ import annotations

from pathlib import Path

import pytest

from beam_jobs.images import run
from tests.beam_jobs.golden import one_pixel_png
from tests.beam_jobs.sources.inputs import tar_bytes
from tpudata.format import open_dataset


def write_tar(path: Path, first: int, *, has_texts: bool) -> None:
    files: list[tuple[str, bytes]] = []
    for number in range(first, first + 3):
        files += [(f"{number:04d}.png", one_pixel_png(number)), (f"{number:04d}.cls", b"1")]
        files += [(f"{number:04d}.txt", b"a text"), (f"{number:04d}.json", b'{"age": 3}')] * has_texts
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(tar_bytes(files))


@pytest.mark.parametrize("had_texts", [True, False])
def test_appends_captions_and_columns_only_if_the_dataset_has_them(tmp_path: Path, had_texts: bool) -> None:
    write_tar(tmp_path / "in" / "b.tar", 0, has_texts=had_texts)
    flags = ["--input", str(tmp_path / "in"), "--output", str(tmp_path / "out")]
    assert run(flags) == 0
    # The first tar decides what samples have.
    write_tar(tmp_path / "in" / "a.tar", 3, has_texts=True)
    assert run([*flags, "--append"]) == 0
    dataset = open_dataset(str(tmp_path / "out"))
    records = list(dataset.examples("train"))
    assert len(records) == 6
    assert {feature.name == "image/caption" for feature in dataset.manifest.features} == {had_texts, False}
    assert all(record.get("image/caption") == ([b"a text"] if had_texts else None) for record in records)
    assert all(record.get("age") == ([3] if had_texts else None) for record in records)

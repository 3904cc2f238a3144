"""Before a manifest is written, the folder is compared with the files that were written.

The comparison is private: conversions list the files that they wrote themselves.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.format.test_metadata import manifest
from tpudata.errors import OutputError
from tpudata.format import write_metadata
from tpudata.format.written_files import WrittenFile, check_written


def written(folder: Path) -> list[WrittenFile]:
    """Write a shard and its index."""
    files = {"train-00000-of-00001.tfrecord": b"shard", "index/train-00000-of-00001.index": b"index"}
    (folder / "index").mkdir()
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return [WrittenFile.of(*file) for file in files.items()]


def test_accepts_files_as_they_were_written(tmp_path: Path) -> None:
    files = written(tmp_path)
    (tmp_path / "other").write_bytes(b"is no matter")
    check_written(str(tmp_path), files)
    write_metadata(str(tmp_path), manifest(None), None, files)
    assert (tmp_path / "manifest.json").exists()


@pytest.mark.parametrize("name", ["train-00000-of-00001.tfrecord", "index/train-00000-of-00001.index"])
@pytest.mark.parametrize("damage", ["missing", "cut", "a folder"])
def test_writes_no_manifest_if_a_file_is_missing_or_truncated(tmp_path: Path, name: str, damage: str) -> None:
    files = written(tmp_path)
    path = tmp_path / name
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:2])
    else:
        path.unlink()
    if damage == "a folder":
        path.mkdir()
    got = {"missing": "got no file", "cut": "got 2 bytes", "a folder": "got 0 bytes"}[damage]
    with pytest.raises(OutputError, match=rf"{name}: it is not as it was written \({got}, expected 5"):
        write_metadata(str(tmp_path), manifest(None), None, files)
    assert not (tmp_path / "manifest.json").exists()


def test_reports_a_missing_folder_as_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match=r"index/a: it is not as it was written \(got no file"):
        check_written(str(tmp_path), [WrittenFile("index/a", 1, None)])

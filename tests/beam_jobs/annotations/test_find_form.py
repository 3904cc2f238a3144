"""Recognition of annotation files, and the error for others.

A form is found by itself: most files here are of none, and a conversion of the others would need their pictures.
"""

from __future__ import annotations

import gzip
import io
import pickle
import uuid
from pathlib import Path

import fsspec
import pytest
from PIL import Image

from beam_jobs.annotations.find_form import FORMS, find_form
from tests.beam_jobs.annotations.reading import read, write_files
from tpudata.errors import SourceError


def colours() -> bytes:
    out = io.BytesIO()
    Image.new("RGB", (4, 4), "red").save(out, "PNG")
    return out.getvalue()


@pytest.mark.parametrize(
    "data",
    [b"", b"\n \n", b"[1, 2]", b'{"boxes": []}', b"a,b\n1,2\n", b"hello\n", b"<html></html>", b"\xff\xd8\xff", b"12\n"],
)
def test_other_files_are_an_error_that_names_the_forms(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(data)
    with pytest.raises(SourceError) as caught:
        find_form(str(path))
    assert str(path) in str(caught.value)
    assert all(form.title in str(caught.value) for form in FORMS)


@pytest.mark.parametrize(
    "files", [{}, {"a.jpg": b""}, {"deep/deeper/a.png": colours()}, {"notes.txt": b"hello\n", "a.json": b"[]"}]
)
def test_other_folders_are_an_error_that_names_the_forms(tmp_path: Path, files: dict[str, bytes]) -> None:
    write_files(tmp_path, files)
    with pytest.raises(SourceError, match="COCO JSON; "):
        find_form(str(tmp_path))


def test_a_missing_path_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="is not there"):
        find_form(str(tmp_path / "a.json"))


def test_a_folder_with_one_annotation_file_stands_for_it(tmp_path: Path) -> None:
    write_files(tmp_path, {"_annotations.coco.json": '{"images": []}', "a.jpg": b"", "README.txt": "hello"})
    form = find_form(str(tmp_path))
    assert list(form.parts()) == [str(tmp_path / "_annotations.coco.json")]
    write_files(tmp_path, {"more.json": '{"images": []}'})
    with pytest.raises(SourceError, match=r"several annotation files: .*_annotations\.coco\.json, .*more\.json"):
        find_form(str(tmp_path))


def test_forms_travel_between_processes(tmp_path: Path) -> None:
    write_files(tmp_path, {"a.json.gz": gzip.compress(b'{"images": []}')})
    form = find_form(str(tmp_path / "a.json.gz"))
    assert pickle.loads(pickle.dumps(form)) == form


@pytest.mark.parametrize(
    ("files", "below"),
    [
        ({"a.json": '{"images": [{"id": 1, "file_name": "a"}]}'}, "a.json"),
        ({"Annotations/a.xml": "<annotation><filename>a</filename></annotation>"}, ""),
        ({"labels/a.txt": "0 .5 .5 1 1", "data.yaml": "names: [x]"}, ""),
        ({"labels/a.txt": "0 .5 .5 1 1", "classes.txt": "x"}, "labels"),
        ({"bbox.csv": "ImageID,LabelName,XMin,XMax,YMin,YMax\na,x,0,1,0,1"}, "bbox.csv"),
        ({"captions.txt": "image,caption\na,b"}, "captions.txt"),
        ({"metadata.jsonl": '{"file_name": "a"}'}, ""),
    ],
)
def test_reads_from_an_object_store(files: dict[str, str], below: str) -> None:
    store = fsspec.filesystem("memory")
    bucket = uuid.uuid4().hex
    for name, text in files.items():
        store.pipe(f"/{bucket}/{name}", text.encode())
    assert list(read(f"memory://{bucket}/{below}".rstrip("/")).pictures) == ["a"]


def test_yolo_without_names_looks_no_higher_than_the_bucket() -> None:
    bucket = uuid.uuid4().hex
    fsspec.filesystem("memory").pipe(f"/{bucket}/labels/a.txt", b"0 .5 .5 1 1")
    with pytest.raises(SourceError, match=r"without names of classes. Add classes\.txt"):
        find_form(f"memory://{bucket}")

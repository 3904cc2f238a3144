"""Recognition of annotation files, and the error for others."""

from __future__ import annotations

import io
import json
import uuid
from pathlib import Path
from typing import Any

import fsspec
import pytest
from PIL import Image

import tpudata
from beam_jobs.annotations.forms.coco_rows import SegmentFolder
from beam_jobs.annotations.forms.open_images import OpenImagesForm
from beam_jobs.annotations.forms.oxford_pets import OxfordPetsForm
from beam_jobs.file_names import find_parent
from tests.beam_jobs.annotations.reading import write_files
from tests.beam_jobs.images import encode, picture
from tests.beam_jobs.outcomes import SKIP
from tpudata.errors import SourceError
from tpudata.format import open_dataset


def colours() -> bytes:
    out = io.BytesIO()
    Image.new("RGB", (4, 4), "red").save(out, "PNG")
    return out.getvalue()


def plan(folder: Path, annotations: Path | str) -> Any:
    """Plan a conversion of a picture `a.jpg`, in a folder next to the annotations."""
    (folder / "pictures").mkdir(exist_ok=True)
    (folder / "pictures" / "a.jpg").write_bytes(encode(picture(), "JPEG"))
    return tpudata.convert_images(folder / "pictures", folder / "out", annotations=annotations, dry_run=True)


OTHERS = [
    b"",
    b"\n \n",
    b"[1, 2]",
    b'{"boxes": []}',
    b"a,b\n1,2\n",
    b"hello\n",
    b"<html></html>",
    b"\xff\xd8\xff",
    b"12\n",
]
FORMS = ("COCO JSON", "Pascal VOC", "YOLO", "Open Images", "CelebA")


@pytest.mark.parametrize("data", OTHERS)
def test_lists_supported_forms_when_it_rejects_a_file(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(data)
    with pytest.raises(SourceError) as error:
        plan(tmp_path, path)
    assert str(path) in str(error.value)
    assert all(form in str(error.value) for form in FORMS)


@pytest.mark.parametrize(
    "files", [{}, {"a.jpg": b""}, {"deep/deeper/a.png": colours()}, {"notes.txt": b"hello\n", "a.json": b"[]"}]
)
def test_lists_supported_forms_when_it_rejects_a_folder(files: dict[str, bytes], tmp_path: Path) -> None:
    folder = tmp_path / "annotations"
    folder.mkdir()
    write_files(folder, files)
    with pytest.raises(SourceError, match="COCO JSON; "):
        plan(tmp_path, folder)


def test_rejects_a_missing_path(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="does not exist"):
        plan(tmp_path, tmp_path / "a.json")


def test_reads_a_folder_only_if_it_has_one_annotation_file(tmp_path: Path) -> None:
    text = json.dumps({"images": [{"id": 1, "file_name": "a.jpg"}]})
    folder = tmp_path / "annotations"
    write_files(folder, {"_annotations.coco.json": text, "a.jpg": b"", "README.txt": "hello"})
    assert plan(tmp_path, folder).inputs == 1
    write_files(folder, {"more.json": text})
    with pytest.raises(SourceError, match=r"several annotation files: .*_annotations\.coco\.json, .*more\.json"):
        plan(tmp_path, folder)


STORED: list[tuple[dict[str, str], str]] = [
    ({"a.json": '{"images": [{"id": 1, "file_name": "a"}]}'}, "a.json"),
    ({"Annotations/a.xml": "<annotation><filename>a</filename></annotation>"}, ""),
    ({"labels/a.txt": "0 .5 .5 1 1", "data.yaml": "names: [x]"}, ""),
    ({"labels/a.txt": "0 .5 .5 1 1", "classes.txt": "x"}, "labels"),
    ({"bbox.csv": "ImageID,LabelName,XMin,XMax,YMin,YMax\na,x,0,1,0,1"}, "bbox.csv"),
    ({"captions.txt": "image,caption\na,b"}, "captions.txt"),
    ({"metadata.jsonl": '{"file_name": "a"}'}, ""),
]


@pytest.mark.parametrize(("files", "below"), STORED)
def test_reads_from_an_object_store(files: dict[str, str], below: str, tmp_path: Path) -> None:
    store = fsspec.filesystem("memory")
    bucket = uuid.uuid4().hex
    for name, text in files.items():
        store.pipe(f"/{bucket}/{name}", text.encode())
    assert plan(tmp_path, f"memory://{bucket}/{below}".rstrip("/")).inputs == 1


def test_yolo_looks_for_class_names_no_higher_than_the_bucket(tmp_path: Path) -> None:
    bucket = uuid.uuid4().hex
    fsspec.filesystem("memory").pipe(f"/{bucket}/labels/a.txt", b"0 .5 .5 1 1")
    with pytest.raises(SourceError, match=r"without names of classes. Add classes\.txt"):
        plan(tmp_path, f"memory://{bucket}")


def test_files_in_the_root_do_not_look_in_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(write_files(tmp_path, {"trimaps/a.png": b"", "a/a.png": b"", "class-descriptions.csv": "x,y\n"}))
    assert OxfordPetsForm.detect_file("list.txt", b"cat_1 1 1 1\n") == OxfordPetsForm("list.txt", "trimaps")
    assert OxfordPetsForm.detect_file("/list.txt", b"cat_1 1 1 1\n") == OxfordPetsForm("/list.txt", "")
    for path, descriptions in (("a.csv", "./class-descriptions.csv"), ("/a.csv", "")):
        assert OpenImagesForm.detect_file(path, b"ImageID,LabelName\n") == OpenImagesForm((path,), descriptions)
    assert SegmentFolder("a.json").find_path("b.png") == "a/b.png"
    assert SegmentFolder("/a.json").find_path("b.png") == "/b.png"


@pytest.mark.parametrize(
    ("path", "parent"),
    [
        *(("/a/x.csv", "/a"), ("/x.csv", "/"), ("/a/", "/"), ("/", ""), ("x.csv", ""), ("a/x.csv", "a")),
        *(("gs://bucket/a/x.csv", "gs://bucket/a"), ("gs://bucket/x.csv", "gs://bucket"), ("gs://bucket", "")),
    ],
)
def test_the_parent_of_a_path_is_its_folder_or_empty(path: str, parent: str) -> None:
    assert find_parent(path) == parent


# Names in an annotation file, and the paths of their pictures.
SAME = [
    ("a.jpg", "one/a.jpg"),
    ("two/b.jpg", "two/b.jpg"),
    ("c", "three/c.jpg"),
    ("four/d", "images/four/d.JPEG"),
    ("photo.v2", "photo.v2.png"),
    ("photo.v3.png", "photo.v3.png"),
    (r"C:\data\five\a b.jpg", "five/a b.jpg"),
    ("/home/me/data/e.jpg", "data/e.jpg"),
    ("./f.jpg", "f.jpg"),
    ("größe.jpg", "gro\u0308ße.jpg"),
    ("images/six/deep/g.jpg", "deep/g.jpg"),
]
OTHER = [
    ("k.jpg", "seven/l.jpg"),
    ("m.jpg", "seven/m.png"),
    ("n.jpg", "seven/bn.jpg"),
    ("val/o.jpg", "train/o.jpg"),
    ("p", "p.v2.png"),
]


def test_matches_listed_names_with_the_ends_of_picture_paths(tmp_path: Path) -> None:
    write_files(tmp_path / "in", {path: encode(picture(), "PNG") for _, path in (*SAME, *OTHER)})
    rows = [{"id": number, "file_name": name} for number, (name, _) in enumerate((*SAME, *OTHER))]
    (tmp_path / "a.json").write_text(json.dumps({"images": rows}))
    options: dict[str, Any] = {"annotations": tmp_path / "a.json", "unannotated": "skip", **SKIP}
    manifest = tpudata.convert_images(tmp_path / "in", tmp_path / "out", **options)
    examples = open_dataset(str(tmp_path / "out")).examples("train")
    found = {bytes(example["image/filename"][0]).decode() for example in examples}  # type: ignore[arg-type]
    assert found == {path for _, path in SAME}
    assert sum(manifest.rejected.values()) == len(OTHER)

"""Every storage keeps the same promises, as input and as output of a conversion."""

from __future__ import annotations

import dataclasses
import hashlib
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.beam_jobs.contract.forms import IMAGE_FORMS, ODD_NAMES, TEXT_FORMS, Form, Item, items
from tests.helpers.pictures import digests
from tests.helpers.stores import serve_gs
from tests.storage.test_fsspec_storage import s3
from tpudata.errors import BadRecordError, TpudataError
from tpudata.format import open_dataset
from tpudata.storage import files_below, folder_ranges, storage_for

__all__ = ["s3"]
COUNT = 12
BAD = (5,)
SKIP = ("--on-bad-record=skip", "--max-bad-records=1")
(PICTURES,) = (form for form in IMAGE_FORMS if form.name == "class folders")
(TAR,) = (form for form in IMAGE_FORMS if form.name == "tar")
(LINES,) = (form for form in TEXT_FORMS if form.name == "lines")


@dataclasses.dataclass(frozen=True)
class Place:
    """A folder of a storage.

    Attributes:
        path: the folder.
        here: a folder on this disk, from which inputs are copied.
    """

    path: str
    here: Path

    def convert(self, form: Form, written: Sequence[Item], *flags: str, name: str = "out") -> str:
        """Write items there, convert them, and return the dataset's folder."""
        inputs = self.write(form, written)
        output = f"{self.path}/{name}"
        form.run([*inputs, f"--output={output}", *flags])
        return output

    def write(self, form: Form, written: Sequence[Item]) -> list[str]:
        """Write items there, and return the flags that name them."""
        flags = form.write(self.here / "in", written)
        for path in sorted((self.here / "in").rglob("*")):
            if path.is_file():
                self.put(path.read_bytes(), "in", *path.relative_to(self.here / "in").parts)
        return [flag.replace(str(self.here), self.path) for flag in flags]

    def put(self, data: bytes, *parts: str) -> None:
        storage = storage_for(self.path)
        with storage.create(storage.join(self.path, *parts)) as file:
            file.write(data)

    def delete(self, *parts: str) -> None:
        storage = storage_for(self.path)
        storage.delete(storage.join(self.path, *parts))

    def digests(self, folder: str) -> dict[str, str]:
        """SHA-256 of every file below a folder."""
        storage = storage_for(folder)
        return {
            below: hashlib.sha256(storage.read(entry.path)).hexdigest()
            for files in folder_ranges(folder, deep=True)
            for entry, below in files_below(files, lambda _: False)
        }


@pytest.fixture
def local(tmp_path: Path) -> str:
    return str(tmp_path / "disk")


@pytest.fixture
def file_url(tmp_path: Path) -> str:
    return f"file://{tmp_path}/disk"


@pytest.fixture
def gs() -> Iterator[str]:
    with serve_gs():
        yield "gs://b/data"


@pytest.fixture
def memory() -> str:
    return f"memory://{uuid.uuid4().hex}/disk"


@pytest.fixture
def s3_folder(s3: str) -> str:
    return f"{s3}/{uuid.uuid4().hex}/disk"


@pytest.fixture
def package(installed: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The storage of docs/convert/extending.md, for other processes, too."""
    del installed
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))
    (tmp_path / "share-disk").mkdir()
    return "share://disk"


@pytest.fixture
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    (tmp_path / "here").mkdir()
    return Place(request.getfixturevalue(request.param), tmp_path / "here")


def of_each(*always: str, shared: bool = False) -> pytest.MarkDecorator:
    """Run a test for each storage, for others than `always` in the matrix alone; if `shared`, without those of one process."""
    names = [
        name
        for name in ("local", "file_url", "gs", "memory", "s3_folder", "package")
        if not (shared and name == "memory")
    ]
    cases = [name if name in always else pytest.param(name, marks=pytest.mark.matrix) for name in names]
    return pytest.mark.parametrize("place", cases, indirect=True, ids=names)


# A text and a tar are read in ranges, the pictures of folders as they are.
@pytest.mark.cases(1)
@pytest.mark.parametrize(
    "form",
    [PICTURES, *(pytest.param(form, marks=pytest.mark.matrix) for form in (TAR, LINES))],
    ids=lambda form: form.name,
)
@of_each("memory", "package")
def test_writes_the_same_bytes_as_on_disk(place: Place, form: Form) -> None:
    there = place.digests(place.convert(form, items(COUNT), "--num-shards=2"))
    form.convert(place.here / "in", items(COUNT), place.here / "out", "--num-shards=2")
    here = digests(place.here / "out")
    # The manifest names the input.
    assert {name for name in here if here[name] != there.get(name)} <= {"manifest.json"}
    assert here.keys() == there.keys()


@of_each("gs")
def test_stores_files_of_any_name(place: Place) -> None:
    named = items(len(ODD_NAMES), names=ODD_NAMES)
    assert PICTURES.read_stored(place.convert(PICTURES, named)) == PICTURES.contents(named)


@of_each("memory")
def test_rejects_an_input_without_items_in_one_line(place: Place) -> None:
    # A folder is there as long as something is in it, or for good.
    for folder, has_been in (("none", False), ("in", True)):
        if has_been:
            place.put(b"", folder, "a.png")
            place.delete(folder, "a.png")
        with pytest.raises(TpudataError) as error:
            PICTURES.run([f"--input={place.path}/{folder}", f"--output={place.path}/out"])
        assert f"disk/{folder}" in str(error.value).replace("b/data", "disk")
        assert "\n" not in str(error.value)
        assert storage_for(place.path).stat(f"{place.path}/out/manifest.json") is None


@of_each("memory")
def test_names_a_damaged_item_and_skips_it(place: Place) -> None:
    written = items(COUNT, bad=BAD)
    with pytest.raises(BadRecordError) as error:
        place.convert(PICTURES, written)
    assert f"in/{written[5].group}/{written[5].name}.png" in str(error.value)
    output = place.convert(PICTURES, written, *SKIP)
    assert PICTURES.read_stored(output) == PICTURES.contents(written)
    assert sum(open_dataset(output).manifest.rejected.values()) == len(BAD)


@of_each("memory")
def test_a_resumed_run_ends_with_the_same_bytes(place: Place) -> None:
    output = place.convert(PICTURES, items(COUNT), "--num-shards=3")
    whole = place.digests(output)
    for name in ("manifest.json", "train-00001-of-00003.tfrecord"):
        place.delete("out", name)
    place.convert(PICTURES, items(COUNT), "--num-shards=3", "--resume")
    assert place.digests(output) == whole


@of_each("memory")
def test_append_adds_only_new_items(place: Place) -> None:
    output = place.convert(PICTURES, items(COUNT))
    old = {name: digest for name, digest in place.digests(output).items() if name.endswith(".tfrecord")}
    place.convert(PICTURES, items(COUNT + 4), "--append")
    assert PICTURES.read_stored(output) == PICTURES.contents(items(COUNT + 4))
    whole = place.digests(output)
    assert old.items() <= whole.items()
    place.convert(PICTURES, items(COUNT + 4), "--append")
    assert place.digests(output) == whole


@of_each(shared=True)
def test_two_workers_write_the_same_bytes(place: Place) -> None:
    flags = [*place.write(PICTURES, items(COUNT)), "--num-shards=3"]
    for name in ("one", "two"):
        PICTURES.run([*flags, f"--output={place.path}/{name}", *["--workers=2"] * (name == "two")])
    assert place.digests(f"{place.path}/one") == place.digests(f"{place.path}/two")

"""Packages that add a source and a storage: the one of docs/convert/extending.md, as it stands there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from beam_jobs import images
from tests.beam_jobs.images import encode, picture
from tpudata.errors import UsageError
from tpudata.format import open_dataset

ROOT = Path(__file__).parents[2]


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The package, installed: its module, and the metadata with its entry points."""
    text = (ROOT / "docs" / "convert" / "extending.md").read_text()
    site = tmp_path / "site"
    metadata = site / "pets-1.0.dist-info"
    metadata.mkdir(parents=True)
    (site / "pets.py").write_text("\n".join(re.findall(r"```python\n(.*?)```", text, re.DOTALL)))
    (toml,) = re.findall(r"```toml\n(.*?)```", text, re.DOTALL)
    groups = re.findall(r'\[project\.entry-points\."(.*?)"\]\n(\w+) = "(.*?)"', toml)
    assert len(groups) == 2
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: pets\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("".join(f"[{group}]\n{name} = {of}\n" for group, name, of in groups))
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.chdir(tmp_path)


def make_pets(folder: Path) -> None:
    folder.mkdir()
    for number in range(6):
        name = ("cat", "dog")[number % 2]
        (folder / f"{name}.{number}.jpg").write_bytes(encode(picture(8 + number, 9), "JPEG"))
    (folder / "more").mkdir()


@pytest.mark.usefixtures("installed")
def test_a_source_and_a_storage_of_another_package(tmp_path: Path) -> None:
    make_pets(tmp_path / "share-disk")
    flags = ["--source=pets", "--split=train=0.5,validation=0.5"]
    assert images.run(["--input=share://disk", "--output=there", *flags]) == 0
    assert images.run([f"--input={tmp_path}/share-disk", "--output=here", *flags]) == 0
    here, there = (open_dataset(name).manifest for name in ("here", "there"))
    assert here.splits == there.splits
    assert (tmp_path / "here" / "labels.txt").read_text() == "cat\ndog\n"
    assert sum(split.records for split in here.splits.values()) == 6
    assert (here.source.ignored_files, here.options["source"]) == (1, "pets")
    # An append reads its input as the conversion has.
    (tmp_path / "share-disk" / "dog.7.jpg").write_bytes(encode(picture(30, 9), "JPEG"))
    assert images.run([f"--input={tmp_path}/share-disk", "--output=here", "--append"]) == 0
    assert sum(split.records for split in open_dataset("here").manifest.splits.values()) == 7


@pytest.mark.usefixtures("installed")
def test_bad_records_of_another_package_are_counted(tmp_path: Path) -> None:
    make_pets(tmp_path / "in")
    (tmp_path / "in" / "stray.jpg").write_bytes(b"x")
    flags = ["--source=pets", "--on-bad-record=skip", "--max-bad-records=1"]
    assert images.run(["--input=in", "--output=out", *flags]) == 0
    assert open_dataset("out").manifest.rejected == {"no class": 1}


@pytest.mark.usefixtures("installed")
def test_rejects_unknown_sources() -> None:
    kinds = "folders, files, list, tar, zip, parquet, idx, imagenet, pets"
    known = rf"^--source is 'pest' \(expected one of {kinds}\).*did you mean pets"
    with pytest.raises(UsageError, match=known):
        images.run(["--input=in", "--output=out", "--source=pest"])


@pytest.mark.parametrize("source", ["folders", "files"])
def test_a_named_source_is_not_guessed(source: str, tmp_path: Path) -> None:
    # By what is there these are class folders.
    for label in ("a", "b"):
        (tmp_path / "in" / label).mkdir(parents=True)
        (tmp_path / "in" / label / "1.jpg").write_bytes(encode(picture(), "JPEG"))
    assert images.run([f"--input={tmp_path}/in", f"--output={tmp_path}/out", f"--source={source}"]) == 0
    assert open_dataset(str(tmp_path / "out")).manifest.labels == 2


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--source=files", "--split-column=s"], "--split-column is for CSV and JSONL lists, and --source is files"),
        (["--source=folders", "--unlabelled"], "--unlabelled: --source=folders takes classes from folders"),
    ],
)
def test_a_named_source_takes_its_own_options_alone(flags: list[str], message: str, tmp_path: Path) -> None:
    (tmp_path / "in" / "a").mkdir(parents=True)
    (tmp_path / "in" / "a" / "1.jpg").write_bytes(encode(picture(), "JPEG"))
    with pytest.raises(UsageError, match=re.escape(message)):
        images.run([f"--input={tmp_path}/in", f"--output={tmp_path}/out", *flags])

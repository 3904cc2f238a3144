"""The recipes for other projects' trainers, loaders and formats, as they stand in the docs.

Their packages are several GB, so most tests are skipped where they are missing: scripts/test_ecosystem installs them.
"""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest

from tests.helpers.datasets import write_images
from tests.helpers.markdown import ROOT
from tpudata import RecordSource
from tpudata.cli import main
from tpudata.format import open_dataset

# Imports that a recipe needs before its block; its page has them above it.
IMPORTS = "import numpy as np\nimport torch\n\nimport tpudata\n"


def section(page: str, heading: str) -> str:
    """Return the block of Python of a section."""
    text = (ROOT / page).read_text(encoding="utf-8").split(f"\n## {heading}\n")[1].split("\n## ")[0]
    (block,) = re.findall(r"^```python\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)
    return str(block)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The datasets that the recipes read, by the names that they have there."""
    folder = tmp_path_factory.mktemp("data")
    (folder / "texts.csv").write_text("text,label\n" + "".join(f"text number {n},{'ab'[n % 2]}\n" for n in range(60)))
    text = ["convert", "text", "--input", str(folder / "texts.csv"), "--field", "text", "--tokenizer", "bytes"]
    assert main([*text, "--output", str(folder / "tokens"), "--sequence-length", "64", "--pack"]) == 0
    assert main([*text, "--output", str(folder / "mails"), "--label-field", "label"]) == 0
    images = [np.full((8, 8, 1), number, np.uint8) for number in range(40)]
    labels = {"train": [number % 10 for number in range(40)]}
    write_images(str(folder / "pictures"), {"train": images}, labels, shape=(8, 8, 1), layout="raw")
    photos = [np.full((20 + number, 30, 3), number, np.uint8) for number in range(40)]
    write_images(str(folder / "photos"), {"train": photos}, labels, shape=(None, None, 3))
    return folder


def run(program: str, folder: Path) -> str:
    """Run a program in another process, since its packages change this one, and return what it prints."""
    done = subprocess.run([sys.executable, "-c", program], cwd=folder, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def needs(*packages: str) -> pytest.MarkDecorator:
    missing = [package for package in packages if importlib.util.find_spec(package) is None]
    return pytest.mark.skipif(bool(missing), reason=f"not installed: {', '.join(missing)}")


@needs("torch", "transformers", "accelerate")
def test_the_hugging_face_trainer_runs(folder: Path, tmp_path: Path) -> None:
    program = section("docs/feed/ecosystem.md", "The Trainer of Hugging Face").replace('"trained"', repr(str(tmp_path)))
    assert "'train_loss'" in run(program, folder)


@needs("datasets")
def test_hugging_face_datasets_hold_the_records(folder: Path) -> None:
    block = section("docs/feed/ecosystem.md", "Datasets of Hugging Face")
    program = f"import tpudata\n{block}\nprint(len(table), table[0]['input_ids'])"
    lines = run(program, folder).splitlines()
    source = RecordSource(str(folder / "tokens"), "train")
    assert lines[0] == "['input_ids', 'segment_ids', 'positions']"
    assert lines[1] == f"{len(source)} {source[0]['input_ids'].tolist()}"


@needs("torch", "lightning")
def test_lightning_trains_from_a_loader(folder: Path) -> None:
    run(IMPORTS + section("docs/feed/ecosystem.md", "Lightning"), folder)


@needs("torch")
def test_collate_functions_batch_pictures_of_different_sizes(folder: Path) -> None:
    program = IMPORTS + section("docs/feed/ecosystem.md", "Texts and pictures of different sizes")
    assert run(program, folder) == "4 torch.Size([4, 3, 224, 224])\n"


@needs("seqio")
def test_a_seqio_task_yields_the_tokens(folder: Path) -> None:
    block = section("docs/dataset/other_readers.md", "A task of SeqIO")
    expected = [record["input_ids"].tolist() for record in RecordSource(str(folder / "mails"), "train")]
    printed = run(f"{block}\nprint([row['targets'].tolist() for row in rows])", folder)
    # SeqIO reads the shards in order, and adds nothing.
    assert printed.splitlines()[-1] == str(expected)


def test_an_export_to_webdataset_converts_back(folder: Path, tmp_path: Path) -> None:
    block = section("docs/dataset/other_readers.md", "Export to WebDataset").replace(
        '"photos"', repr(str(folder / "photos"))
    )
    run(block, tmp_path)
    with tarfile.open(tmp_path / "train-000000.tar") as tar:
        assert tar.getnames()[:2] == ["00000000.png", "00000000.cls"]
    assert (
        main(["convert", "images", "--input", str(tmp_path / "train-000000.tar"), "--output", str(tmp_path / "back")])
        == 0
    )
    back = {example["image/encoded"][0] for example in open_dataset(str(tmp_path / "back")).examples("train")}
    before = {example["image/encoded"][0] for example in open_dataset(str(folder / "photos")).examples("train")}
    assert back == before


@needs("webdataset")
def test_webdataset_reads_an_export(folder: Path, tmp_path: Path) -> None:
    block = section("docs/dataset/other_readers.md", "Export to WebDataset").replace(
        '"photos"', repr(str(folder / "photos"))
    )
    run(block, tmp_path)
    program = "import webdataset\nprint(sum(1 for _ in webdataset.WebDataset('train-000000.tar', shardshuffle=False)))"
    assert run(program, tmp_path) == "40\n"


@needs("streaming")
def test_mosaicml_streaming_reads_an_export(folder: Path, tmp_path: Path) -> None:
    block = section("docs/dataset/other_readers.md", "Export to MDS").replace('"photos"', repr(str(folder / "photos")))
    program = "import streaming\nprint(len(streaming.StreamingDataset(local='mds', shuffle=False, batch_size=1)))"
    assert run(f"{block}\n{program}", tmp_path).splitlines()[-1] == "40"


@needs("torch", "torch_xla")
def test_the_torch_xla_loader_accepts_ours(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PJRT_DEVICE", "CPU")
    block = section("docs/feed/ecosystem.md", "torch_xla")
    program = f"{IMPORTS}{block}\nassert sum(1 for _ in MpDeviceLoader(loader, device)) == 5"
    device, loss = run(program, folder).splitlines()[-1].split()
    assert device == "xla:0"
    assert np.isfinite(float(loss))

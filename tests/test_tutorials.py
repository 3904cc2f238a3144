"""The tutorials and the notebooks, run from the first command to the last, on less data and with fewer steps.

`tpudata ...` is called in this process, `python ...` in another. Blocks marked `console` need Google Cloud: they are not run,
and hold nothing else.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.helpers.digits import write_digits
from tests.helpers.forked import run
from tests.helpers.markdown import ROOT, run_python
from tpudata.cli import main

TUTORIALS = ROOT / "docs" / "tutorials"
# A line of a block that is not run.
CLOUD = re.compile(r"\$ (gcloud |sudo |python3 -m pip |~/.local/bin/uv |pip |tpudata .*gs://)|    --")


@pytest.fixture(scope="module", autouse=True)
def _server() -> None:
    """Start the process that others fork from in this folder: in a temporary one it would not find its module."""
    run("-c", "")


def run_line(line: str, code: int = 0) -> str:
    """Run a command; returns what another process prints. `migrate` ends with 1 for what it leaves to do.

    Args:
        line: the command.
        code: the exit code that a command of tpudata must end with.
    """
    words = shlex.split(line)
    if words[0] == "tpudata":
        assert main(words[1:]) == (code or int(words[1] == "migrate"))
        return ""
    if words[0] == "cat":
        print("".join(path.read_text() for path in sorted(Path.cwd().glob(words[1]))), end="")
        return ""
    environment = {}
    while "=" in words[0]:
        name, _, value = words.pop(0).partition("=")
        environment[name] = value
    assert words.pop(0) == "python"
    done = run(*words, environment=environment, folder=Path.cwd())
    assert done.returncode == 0, done.stderr
    return done.stdout


def run_page(name: str, folder: Path, smaller: dict[str, str]) -> list[str]:
    """Run the blocks of a tutorial in order, and return what other processes print.

    Args:
        name: the page.
        folder: the working directory.
        smaller: what is replaced, so that it takes less time; each must be there.
    """
    text = (TUTORIALS / name).read_text(encoding="utf-8")
    for old, new in smaller.items():
        assert old in text
        text = text.replace(old, new)
    printed = []
    for kind, block in re.findall(r"^```(\w+)\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE):
        file = re.match(r"# (\w+\.(?:py|yaml))\n", block)
        if file is not None:
            (folder / file[1]).write_text(block, encoding="utf-8")
        elif kind == "python":
            run_python(block, folder)
        elif kind == "sh":
            printed += [run_line(line) for line in block.splitlines()]
        elif kind == "console":
            assert [line for line in block.splitlines() if not CLOUD.match(line)] == []
        else:
            assert kind == "text"
    return printed


def run_and_compare(name: str, folder: Path, smaller: dict[str, str]) -> str:
    """Run the blocks of a tutorial in order, compare what its commands print with the block that follows, and return the rest.

    What follows from training or from the clock is not compared. A command whose output begins with an error must end with 1.

    Args:
        name: the page.
        folder: the working directory.
        smaller: what is replaced, so that it takes less time; each must be there.
    """
    text = (TUTORIALS / name).read_text(encoding="utf-8")
    assert all(old in text for old in smaller)
    blocks = re.findall(r"^```(\w+)\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)
    rest = ""
    for number, (kind, block) in enumerate(blocks):
        for old, new in smaller.items():
            block = block.replace(old, new)
        if kind == "python":
            rest += run_python(block, folder)
        elif kind == "sh":
            follows, shown = blocks[number + 1] if number + 1 < len(blocks) else ("", "")
            shown = shown if follows == "text" else ""
            output = io.StringIO()
            with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
                for line in block.splitlines():
                    run_line(line, code=int(shown.startswith("tpudata: error:")))
            if shown and "accuracy" not in shown:
                assert _without_clock(output.getvalue()) == _without_clock(shown)
    return rest


def _without_clock(text: str) -> list[str]:
    """Return lines without times, and without the sizes of pages, which follow from versions of packages."""
    text = re.sub(r"in [\d.]+ s \(.*\)", "in TIME", text)
    return re.sub(r"html: .*, opens", "html: SIZE, opens", text).strip().splitlines()


def write_imagenet(folder: Path) -> None:
    """Write six pictures of each of three synsets, as ImageNet is laid out."""
    synsets = ["n01440764", "n01443537", "n01484850"]
    generator = np.random.default_rng(1)
    for number in range(18):
        synset = synsets[number % 3]
        split, name = (
            ("train", f"{synset}_{number}") if number < 12 else ("validation", f"ILSVRC2012_val_{number - 11:08d}")
        )
        path = folder / split / (synset if number < 12 else "") / f"{name}.JPEG"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(generator.integers(0, 256, (44, 40, 3), np.uint8)).save(path)
    (folder / "synset_labels.txt").write_text("".join(f"{synsets[number % 3]}\n" for number in range(12, 18)))


@pytest.mark.matrix
def test_imagenet_tutorial_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_imagenet(tmp_path / "imagenet")
    smaller = {
        "--crop 224": "--crop 32 --seconds 0.01",
        "--batch-size 1024": "--batch-size 8",
        "crop: 224": "crop: 32",
        "batch_size: 1024": "batch_size: 8",
        "depth: 50": "depth: 18\n  blocks: [1, 1]",
        "iterations_per_loop: 1251": "iterations_per_loop: 2",
        "--workers 2": "--workers 1",
        "--batch-size 32 --eval-batch-size 32 --train-steps 4": "--batch-size 4 --eval-batch-size 4 --train-steps 2",
    }
    run_page("imagenet.md", tmp_path, smaller)
    assert json.loads((tmp_path / "dataset" / "manifest.json").read_text())["labels"] == 3
    assert (tmp_path / "imagenet.html").stat().st_size > 10_000
    # All six pictures of the validation set.
    assert json.loads((tmp_path / "trial" / "evaluation.json").read_text())["global_step"] == 2


def test_language_model_tutorial_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    smaller = {
        'glob("*.py")': 'glob("a*.py")',
        "--train-steps 2000 --batch-size 32": "--train-steps 20 --batch-size 16",
        "hidden_units=256": "hidden_units=32",
        "warmup_steps=100": "warmup_steps=2",
        "max_new_tokens=200": "max_new_tokens=20",
    }
    run_page("language_model.md", tmp_path, smaller)
    texts = [json.loads(line) for line in (tmp_path / "model" / "predictions.jsonl").read_text().splitlines()]
    assert [text["prompt"] for text in texts] == ["Return "] * 3
    assert json.loads((tmp_path / "model" / "evaluation.json").read_text())["bits_per_character"] < 6.6  # log2(99)


def test_boxes_tutorial_learns_boxes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    printed = run_and_compare("boxes.md", tmp_path, {"max_steps=500": "max_steps=60"})
    found = re.match(r"\{'box_error': np\.float32\(([\d.]+)\), 'accuracy'", printed)
    assert found is not None
    # 0.026 after all 500 steps.
    assert float(found[1]) < 0.12


def test_text_classes_tutorial_learns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run_and_compare("text_classes.md", tmp_path, {"--train-steps 200": "--train-steps 60"})
    assert json.loads((tmp_path / "model" / "evaluation.json").read_text())["accuracy"] > 0.8
    lines = (tmp_path / "predictions.csv").read_text().splitlines()
    assert len(lines) == 189
    assert lines[0] == "index,label,label_name,class_name,classes,probabilities"


def test_porting_tutorial_learns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_digits(tmp_path / "quickstart" / "dataset", {"train": 200, "validation": 102})
    printed = run_page("porting.md", tmp_path, {'"train_steps", 500': '"train_steps", 30'})
    ported, better = (
        re.search(r"'accuracy': np\.float32\((.*?)\).*'global_step': np\.int64\(30\)\}", text) for text in printed[-2:]
    )
    assert ported is not None
    assert better is not None
    assert float(ported[1]) > 0.3


def run_notebook(name: str, replaced: dict[str, str]) -> None:
    """Run the cells of a notebook in order, in this process.

    Args:
        name: the notebook's file.
        replaced: what is replaced, so that it takes less time; each must be there.
    """
    notebook = json.loads((TUTORIALS / name).read_text(encoding="utf-8"))
    names: dict[str, Any] = {"run_line": run_line}
    cells = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert all(cell.get("outputs", []) == [] for cell in notebook["cells"])
    assert all(any(old in code for code in cells) for old in replaced)
    for code in cells:
        for old, new in replaced.items():
            code = code.replace(old, new)
        # IPython's shell commands, with expressions in braces; magics only install packages, and are skipped.
        code = re.sub(r"^!(.*)$", lambda found: f"run_line(f{found[1]!r})", code, flags=re.MULTILINE)
        code = re.sub(r"^(\s+)%.*$", r"\1raise AssertionError", code, flags=re.MULTILINE)
        exec(compile(code, name, "exec"), names)


@pytest.mark.matrix
def test_notebook_learns_digits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    run_notebook("tpudata.ipynb", {"--train-steps 300": "--train-steps 50"})
    out = capsys.readouterr().out
    assert "1797 records of 10 classes in ['train', 'validation']" in out
    assert "(128, 8, 8, 1) <dtype: 'uint8'> <dtype: 'int32'>" in out
    assert "[128, 128, 118]" in out
    assert (tmp_path / "report.html").is_file()
    assert json.loads((tmp_path / "model" / "evaluation.json").read_text())["accuracy"] > 0.5


@pytest.mark.matrix
def test_jax_text_notebook_learns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    run_notebook("text_jax.ipynb", {"range(300)": "range(60)"})
    (bits,) = re.findall(r"([\d.]+) bits per byte", capsys.readouterr().out)
    # 8 bits without learning, and about 4.5 by the frequencies of bytes.
    assert float(bits) < 5


def test_pytorch_image_notebook_learns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    run_notebook("images_pytorch.ipynb", {})
    (share,) = re.findall(r"([\d.]+)% of 374 held-out digits", capsys.readouterr().out)
    assert float(share) > 90

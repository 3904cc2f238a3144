"""Runs the commands of the docs on small data, and prints which ran, which were skipped and why, and which failed.

    .venv/bin/python scripts/docs_commands.py [PAGE ...]

PAGE is a path such as docs/convert/text.md; without one, all pages. Each page has a separate copy of the data, in which its
commands run in order; gs://BUCKET is the store of scripts/gcs_emulator. Tests run the commands of the tutorials and of the pages of
common datasets, so these are skipped here. The exit code is 1 if a command failed.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import importlib.util
import json
import os
import re
import shlex
import shutil
import struct
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
from PIL import Image

from tpudata.format import encode_example
from tpudata.format.tfrecord.framing import pack_frame

ROOT = Path(__file__).resolve().parent.parent
# Pages and folders of pages whose commands tests run, and the tests.
TESTED = {
    "docs/convert/datasets.md": "tests/beam_jobs/test_common_datasets.py",
    "docs/convert/text_datasets.md": "tests/beam_jobs/test_common_texts.py",
    "docs/convert/which_command.md": "tests/beam_jobs/test_common_datasets.py and test_common_texts.py",
    "docs/convert/extending.md": "tests/beam_jobs/test_extending.py",
    "docs/tutorials/": "tests/test_tutorials.py",
}
# Reasons not to run a command on any page, by a pattern of the command.
SKIPPED_EVERYWHERE = {
    r"gcloud|--runner=dataflow|gs://BUCKET/imagenet": "needs Google Cloud",
    r"^(pip|python3 -m pip|docker|\.venv/bin/pip)|setup\.sh": "installs packages",
    r"^export": "sets a variable for the commands below it",
    r"^(tensorboard|scripts/gcs_emulator|\.venv/bin/jupyter)|worker_pool_main": "starts a server",
    r"^srun": "needs Slurm",
    r"gs://bucket/": "needs several machines",
}
# Further reasons not to run a command of a page that no test runs.
SKIPPED = {
    r"\.\.\.|\[--|FOLDER|\bFILE\b|PYTHON|DATASET256|DIR2|PROGRAM": "is a pattern, not a command",
    r"scripts/(bench|conformance)": "takes minutes: it measures or compares",
    r"--tpu v": "takes minutes: libtpu compiles the step",
    r"scripts/quickstart --gcs": "run by tests/gcs/test_emulator.py",
    r"scripts/quickstart": "run by tests/test_quickstart.py",
    r"jax_processes": "run by tests/test_examples.py",
    r"cifar-10-batches-py": "run by tests/beam_jobs/test_common_datasets.py",
    r"imagenet_to_gcs": "run by tests/beam_jobs/sources/folders/test_imagenet.py",
    r"tensorflow_datasets/": "needs a dataset of TensorFlow Datasets",
}
# Package and extra that a command needs, by a pattern of the command.
PACKAGES = {r"sentencepiece:": ("sentencepiece", "text"), r"hf:": ("tokenizers", "text")}
_LIMIT = 600  # Seconds of a command.
# Replacements in commands, so that they take seconds, and use names of the data.
REPLACEMENTS = (
    (r"--train-steps \d+", "--train-steps 2"),
    (r"--batch-size \d+", "--batch-size 8"),
    (r"--image-size \d+x\d+", "--image-size 32x32"),
    (r"--crop \d+", "--crop 32"),
    (r"--profile 100:105", "--profile 1:2"),
    (r" --use-tpu\b", ""),
    (r"\bDATASET\b|\bDIR\b", "dataset"),
    (r"\bMODEL\b", "model"),
)
# Flags to add to commands that match a pattern, so that they take seconds.
ADDED_FLAGS = (
    (r"^tpudata train (?!.*(--train-steps|--mode\b|--rehearse))", " --train-steps 2"),
    (r"^tpudata train (?!.*(--batch-size|--rehearse))", " --batch-size 8"),
    (r"--model resnet ", " --param depth=18"),
    (r"^tpudata bench", " --seconds 0.2"),
)


class Result(NamedTuple):
    """Result of a command.

    Attributes:
        outcome: "ran", "skipped" or "failed".
        command: the command, as on the page.
        note: its time, the reason why it was skipped, or the last line of its error.
    """

    outcome: str
    command: str
    note: str


def main(argv: Sequence[str] | None = None) -> int:
    """Run the commands of the pages, and return 1 if one failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pages", nargs="*", metavar="PAGE")
    names = parser.parse_args(argv).pages or [
        "README.md",
        *(path.relative_to(ROOT).as_posix() for path in sorted((ROOT / "docs").rglob("*.md"))),
    ]
    outcomes: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    with tempfile.TemporaryDirectory(prefix="tpudata-docs-") as temporary:
        data = Path(temporary, "data")
        write_data(data)
        with serve_bucket(data / "pictures", Path(temporary)) as variables:
            for page in names:
                for outcome, command, note in run_page(page, data, Path(temporary, "work"), variables):
                    outcomes[outcome] += 1
                    if outcome == "skipped":
                        reasons[note] += 1
                    print(f"{outcome:8} {page}: {command}  ({note})", flush=True)
    print(", ".join(f"{outcomes[outcome]} {outcome}" for outcome in ("ran", "skipped", "failed")))
    for reason, count in reasons.most_common():
        print(f"{count:4} skipped: {reason}")
    return int(outcomes["failed"] > 0)


@contextlib.contextmanager
def serve_bucket(pictures: Path, folder: Path) -> Iterator[dict[str, str]]:
    """Serve gs://BUCKET with pictures, and yield the environment variables with which commands use it.

    Args:
        pictures: the folder that becomes gs://BUCKET/pictures.
        folder: folder for the server's files.
    """
    shutil.copytree(pictures, folder / "bucket" / "pictures")
    variables_file = folder / "variables"
    words = ["scripts.fake_gcs", f"--environment={variables_file}", f"--bucket=BUCKET={folder / 'bucket'}"]
    with subprocess.Popen([sys.executable, "-m", *words], cwd=ROOT, stdout=subprocess.DEVNULL) as server:
        try:
            while not variables_file.exists():
                if server.poll() is not None:
                    raise RuntimeError(f"scripts/gcs_emulator ended with {server.returncode}")
                time.sleep(0.1)
            # Lines such as `export NAME=VALUE`.
            lines = variables_file.read_text(encoding="utf-8").splitlines()
            yield dict(shlex.split(line)[1].split("=", 1) for line in lines)
        finally:
            server.terminate()


def run_page(page: str, data: Path, work: Path, bucket_variables: dict[str, str]) -> Iterator[Result]:
    """Run the commands of a page in order, and yield their results.

    Args:
        page: path of the page below the root.
        data: folder of the data.
        work: folder in which the commands run; it becomes a copy of `data`.
        bucket_variables: environment variables for commands that name gs://BUCKET.
    """
    commands = list(find_commands((ROOT / page).read_text(encoding="utf-8")))
    test = next((test for name, test in TESTED.items() if page.startswith(name)), None)
    shutil.rmtree(work, ignore_errors=True)
    if commands and test is None:
        shutil.copytree(data, work)
    for command in commands:
        reason = find_reason_to_skip(command, test)
        if reason is not None:
            yield Result("skipped", command, reason)
            continue
        environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
        if "gs://" in command:
            environment |= bucket_variables
        words = ["bash", "-c", shorten_command(command, work)]
        begin = time.monotonic()
        try:
            process = subprocess.run(words, cwd=work, capture_output=True, text=True, timeout=_LIMIT, env=environment)
        except subprocess.TimeoutExpired:
            yield Result("failed", command, f"it takes more than {_LIMIT} s")
            continue
        # The exit code 1 of `migrate` stands for something left to do, that of `doctor` for a problem of this machine.
        may_be_1 = re.match(r"tpudata (migrate|doctor)", command)
        if process.returncode == 0 or (process.returncode == 1 and may_be_1):
            yield Result("ran", command, f"{time.monotonic() - begin:.0f} s")
            continue
        error_lines = [line for line in process.stderr.splitlines() if line.strip()]
        yield Result("failed", command, error_lines[-1] if error_lines else f"exit code {process.returncode}")


def find_reason_to_skip(command: str, test: str | None) -> str | None:
    """Return the reason why a command is not run, None for a command to run.

    Args:
        command: the command.
        test: the test that runs the commands of its page, or None.
    """
    reasons = SKIPPED_EVERYWHERE if test is not None else SKIPPED_EVERYWHERE | SKIPPED
    for pattern, reason in reasons.items():
        if re.search(pattern, command):
            return reason
    if test is not None:
        return f"run by {test}"
    for pattern, (package, extra) in PACKAGES.items():
        if re.search(pattern, command) and importlib.util.find_spec(package) is None:
            return f"needs the [{extra}] extra"
    return None


def find_commands(text: str) -> Iterator[str]:
    """Yield the commands of a page: lines of code that begin with a program, without comments and a final &."""
    lines = iter(text.splitlines())
    # Language of the fenced block of code that a line is in, empty outside of one.
    language = ""
    for line in lines:
        if line.startswith("```"):
            # The fence ends a block, or begins one, whose language may be omitted.
            ends_block = bool(language)
            language = "" if ends_block else line[3:] or "text"
            continue
        if language and language not in ("sh", "console"):
            continue
        match = re.match(r"(?:\$ )?(\S.*)" if language else r"    +(?:\$ )?(\S.*)", line)
        command = match[1] if match else ""
        if not re.match(
            r"(\w+=\S+ )*(tpudata|python3?|scripts/|\.venv/|gcloud|pip|docker|export|srun|tensorboard) ?", command
        ):
            continue
        # A line of output, such as `tpudata: error: ...`.
        if re.match(r"tpudata(:|$)", command):
            continue
        while command.endswith("\\"):
            command = f"{command[:-1].rstrip()} {next(lines, '').strip()}".rstrip()
        yield re.sub(r"\s+# .*|\s+&$", "", command)


def shorten_command(command: str, work: Path) -> str:
    """Return a form of a page's command that takes seconds, and remove the output that it would not replace.

    Args:
        command: the command as the page shows it.
        work: folder in which it will run.
    """
    for pattern, replacement in REPLACEMENTS:
        command = re.sub(pattern, replacement, command)
    for pattern, flags in ADDED_FLAGS:
        if re.search(pattern, command):
            command += flags
    command = re.sub(r"\bconfigs/", f"{ROOT}/configs/", command)
    command = re.sub(r"^python (scripts|examples)/", rf"python {ROOT}/\1/", command)
    output = re.search(r"--output (\S+)", command)
    writes_dataset = re.match(r"tpudata (convert|reshard|import) ", command)
    if writes_dataset and output and "--append" not in command and "--resume" not in command:
        shutil.rmtree(work / output[1], ignore_errors=True)
    model_dir = re.search(r"--model-dir (\S+)", command)
    is_new_training = re.match(r"tpudata train (?!.*(--mode |--warm-start))", command)
    if is_new_training and model_dir:
        shutil.rmtree(work / model_dir[1], ignore_errors=True)
    return command


def write_data(folder: Path) -> None:
    """Write small inputs, datasets and models under the names that the pages use."""
    random = np.random.default_rng(1)
    write_picture_inputs(folder, random)
    write_text_inputs(folder)
    write(folder / "main.py", "import tensorflow as tf\nprint(tf.contrib.tpu.RunConfig)\n")
    write(folder / "model.py", "import tensorflow as tf\nx = tf.placeholder(tf.float32)\n")
    write(folder / "labels.txt", "cat\ndog\n")
    write_examples(folder / "boxes" / "a.tfrecord")
    write(folder / "resnet50.yaml", "model: resnet\ncrop: 32\nparams: {depth: 18}\n")
    splits = ["--split", "train=0.5,validation=0.5"]
    convert_digits = ["convert", "images", "--input", "mnist", "--layout", "raw"]
    convert_pictures = ["convert", "images", "--input", "pictures"]
    convert_text = ["convert", "text", "--input", "corpus", "--tokenizer", "chars", "--sequence-length", "16"]
    run_all(
        folder,
        [*convert_digits, "--output", "quickstart/dataset"],
        [*convert_pictures, *splits, "--output", "dataset"],
        [*convert_pictures, *splits, "--output", "more_pictures", "--seed", "1"],
        [*convert_text, *splits, "--output", "TOKENS"],
        [*convert_pictures, "--output", "a"],
        [*convert_pictures, "--output", "b", "--seed", "1"],
    )
    (folder / "old").mkdir()
    for shard in (folder / "dataset").glob("*.tfrecord"):
        shutil.copy(shard, folder / "old")


def write_picture_inputs(folder: Path, random: np.random.Generator) -> None:
    """Write pictures in folders, lists, archives and files of other programs."""
    for subfolder in ("pictures/cat", "pictures/dog", "animals/cat", "animals/dog"):
        write_pictures(folder / subfolder, 60, random)
    write_pictures(folder / "A", 4, random)
    write_pictures(folder / "B", 4, random)
    write_pictures(folder / "facades", 4, random)
    write_pictures(folder / "images", 40, random)
    for path in sorted((folder / "images").iterdir()):
        save(folder / "masks" / f"{path.stem}.png", random.integers(0, 3, (40, 48), dtype=np.uint8))
    for number in range(6):
        save(
            folder / "photos" / f"{'cat' if number % 2 else 'dog'}.{number}.jpg", np.full((40, 48, 3), number, np.uint8)
        )
    images = [{"bytes": path.read_bytes(), "path": path.name} for path in sorted((folder / "photos").iterdir())]
    table = pa.table({"image": images, "label": [number % 2 for number in range(6)]})
    for name in ("cifar10/train-00000-of-00001.parquet", "downloaded/a/train-00000-of-00001.parquet"):
        (folder / name).parent.mkdir(parents=True)
        pq.write_table(table, folder / name)
    rows = [f"pictures/cat/{number}.jpg,cat" for number in range(12)]
    write(folder / "list.csv", "\n".join(["path,label", *rows]))
    with zipfile.ZipFile(folder / "animals.zip", "w") as archive:
        for path in sorted((folder / "animals").rglob("*.jpg")):
            archive.write(path, path.relative_to(folder / "animals"))
    with tarfile.open(folder / "animals.tar", "w") as tar:
        tar.add(folder / "animals", ".")
    write_coco(folder)
    write_voc(folder)
    write_idx(folder / "mnist", random)


def write_text_inputs(folder: Path) -> None:
    """Write texts as lines, tables and JSON, and tokenizers."""
    speech = "FIRST:\nBefore we proceed any further, hear me speak.\n\nALL:\nSpeak, speak.\n\n" * 200
    for name in ("plays.txt", "shakespeare.txt", "corpus/a.txt", "text/a.txt", "notes/a.txt"):
        write(folder / name, speech)
    write(folder / "corpus.en", "one\ntwo\n")
    write(folder / "corpus.de", "eins\nzwei\n")
    write(folder / "wmt" / "a.en", "one\ntwo\n")
    write(folder / "wmt" / "a.de", "eins\nzwei\n")
    rows = [json.dumps({"text": f"review {number}", "stars": number % 5}) for number in range(20)]
    (folder / "reviews").mkdir(parents=True)
    (folder / "reviews" / "a.jsonl.gz").write_bytes(gzip.compress("\n".join(rows).encode()))
    news = [f"news number {number},{'ab'[number % 2]}" for number in range(80)]
    write(folder / "news.csv", "\n".join(["text,label", *news]))
    write_tokenizers(folder, speech)
    write(folder / "wmt.jsonl", json.dumps({"en": "one speaks", "de": "eins spricht"}))
    write(folder / "sft.jsonl", json.dumps({"prompt": "speak", "completion": "hear me speak"}))
    chat = [{"role": "user", "content": "speak"}, {"role": "assistant", "content": "hear me speak"}]
    write(folder / "chats.jsonl", json.dumps({"messages": chat}))
    write(folder / "alpaca.json", json.dumps([{"instruction": "speak", "input": "", "output": "hear me speak"}]))


def write_tokenizers(folder: Path, text: str) -> None:
    """Write a tokenizer of each kind, trained on a text, if its package is installed."""
    with contextlib.suppress(ImportError):
        import sentencepiece

        sentences = iter(text.splitlines())
        with (folder / "spm.model").open("wb") as model:
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=sentences, model_writer=model, vocab_size=100, hard_vocab_limit=False, minloglevel=2
            )
    with contextlib.suppress(ImportError):
        from tokenizers import Tokenizer, models, pre_tokenizers, trainers

        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel()
        tokenizer.train_from_iterator([text], trainers.BpeTrainer(vocab_size=300, special_tokens=["<eos>"]))
        template = "{% for turn in messages %}{{ turn.role }}: {{ turn.content }}<eos>{% endfor %}"
        for path in (folder / "tokenizer.json", folder / "model" / "tokenizer.json"):
            write(path, tokenizer.to_str())
            write(
                path.with_name("tokenizer_config.json"), json.dumps({"chat_template": template, "eos_token": "<eos>"})
            )


def write_examples(path: Path) -> None:
    """Write a TFRecord file with an Example of features that tpudata has no names for."""
    path.parent.mkdir()
    path.write_bytes(pack_frame(encode_example({"boxes": [0.0, 0.0, 0.5, 0.5], "names": ["cat"], "age": 3})))


def run_all(folder: Path, *commands: Sequence[str]) -> None:
    """Run commands of tpudata in a folder, each given by its arguments."""
    program = Path(sys.executable).parent / "tpudata"
    for command in commands:
        subprocess.run([str(program), *command], cwd=folder, check=True, capture_output=True)


def write_pictures(folder: Path, count: int, random: np.random.Generator) -> None:
    """Write noisy JPEGs of 48 x 40 pixels."""
    for number in range(count):
        save(folder / f"{number}.jpg", random.integers(0, 256, (40, 48, 3), dtype=np.uint8))


def write_idx(folder: Path, random: np.random.Generator) -> None:
    """Write random digits and labels in the files of MNIST."""
    folder.mkdir()
    for split, count in (("train", 40), ("t10k", 20)):
        for kind, values in (
            ("images-idx3", random.integers(0, 256, (count, 28, 28), dtype=np.uint8)),
            ("labels-idx1", np.arange(count, dtype=np.uint8) % 10),
        ):
            # Two zeros, 8 for uint8, the number of dimensions, and the dimensions.
            head = struct.pack(f">HBB{values.ndim}I", 0, 8, values.ndim, *values.shape)
            (folder / f"{split}-{kind}-ubyte.gz").write_bytes(gzip.compress(head + values.tobytes()))


def write_coco(folder: Path) -> None:
    """Write pictures with boxes in the format of COCO."""
    random = np.random.default_rng(2)
    write_pictures(folder / "train2017", 4, random)
    images = [{"id": number, "file_name": f"{number}.jpg", "width": 48, "height": 40} for number in range(4)]
    boxes = [
        {"id": number, "image_id": number, "category_id": 1, "bbox": [2, 3, 10, 12], "area": 120, "iscrowd": 0}
        for number in range(4)
    ]
    categories = [{"id": 1, "name": "cat"}]
    content: dict[str, Any] = {"images": images, "annotations": boxes, "categories": categories}
    write(folder / "annotations" / "instances_train2017.json", json.dumps(content))


def write_voc(folder: Path) -> None:
    """Write pictures with boxes in the format of Pascal VOC."""
    write_pictures(folder / "JPEGImages", 3, np.random.default_rng(3))
    box = "<bndbox><xmin>3</xmin><ymin>4</ymin><xmax>20</xmax><ymax>30</ymax></bndbox>"
    for number in range(3):
        size = "<size><width>48</width><height>40</height><depth>3</depth></size>"
        cat = f"<object><name>cat</name><difficult>0</difficult>{box}</object>"
        text = f"<annotation><filename>{number}.jpg</filename>{size}{cat}</annotation>"
        write(folder / "Annotations" / f"{number}.xml", text)


def save(path: Path, pixels: np.ndarray[Any, Any]) -> None:
    """Save pixels, uint8 [height, width] or [height, width, 3], as a picture in the format of the path's suffix."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)


def write(path: Path, text: str) -> None:
    """Write a text file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        sys.exit(main())
    sys.exit(130)

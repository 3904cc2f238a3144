"""`tpudata train`, from end to end: what it prints, writes and rejects.

One test reads the params that a model would get, which takes no training.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.helpers.datasets import write_undecodable
from tests.helpers.digits import write_digits
from tests.train.jobs import newest_step, read_json, train_job
from tpudata.cli import main
from tpudata.devices.processes.topology import make_local_topology
from tpudata.format import Split, open_dataset, write_metadata
from tpudata.train.model import find_label, make_model_params
from tpudata.train.options.flags import parse_options


@pytest.fixture(scope="module")
def model_dir(digits_dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A mnist_cnn after 40 steps, evaluated, and the predictions of the whole validation split; read only."""
    folder = tmp_path_factory.mktemp("model")
    assert train_job(digits_dataset, folder, "--train-steps=40", "--seed=3") == 0
    assert train_job(digits_dataset, folder, "--mode=predict", "--eval-batch-size=25") == 0
    return folder


def test_metrics_agree_with_the_predictions(model_dir: Path) -> None:
    metrics = read_json(model_dir / "evaluation.json")
    lines = [json.loads(line) for line in (model_dir / "predictions.jsonl").read_bytes().splitlines()]
    assert (metrics["global_step"], metrics["records"], metrics["split"]) == (40, 90, "validation")
    assert len(lines) == 90
    right = sum(line["predictions"]["classes"] == line["label"] for line in lines)
    assert metrics["accuracy"] == pytest.approx(right / 90)
    losses = [-math.log(line["predictions"]["probabilities"][line["label"]]) for line in lines]
    # 90 records in batches of 32: the padding of the last one must not count.
    assert metrics["cross_entropy"] == pytest.approx(sum(losses) / 90, rel=1e-4)
    assert right / 90 > 0.6


def test_training_resumes_and_stops_at_train_steps(
    model_dir: Path, digits_dataset: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same seed gives the same model, in two parts as well."""
    folder = tmp_path / "model"
    assert train_job(digits_dataset, folder, "--mode=train", "--train-steps=15", "--seed=3") == 0
    assert (newest_step(folder), (folder / "evaluation.json").exists()) == (15, False)
    assert train_job(digits_dataset, folder, "--train-steps=40", "--save-checkpoints-steps=16", "--seed=3") == 0
    assert newest_step(folder) == 40
    assert read_json(folder / "evaluation.json") == read_json(model_dir / "evaluation.json")
    for steps in (40, 17):
        capsys.readouterr()
        assert train_job(digits_dataset, folder, "--mode=train", f"--train-steps={steps}") == 0
        assert newest_step(folder) == 40
        out = capsys.readouterr().out
        row = next(line.split() for line in out.splitlines() if line.startswith("train  "))
        assert row[:5] == ["train", "train", "0", "40", "-"]
        assert f"nothing to train: {folder} is at step 40, and --train-steps is {steps}\n" in out


def test_prints_and_saves_the_configuration(
    model_dir: Path, digits_dataset: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    raw = (model_dir / "train_config.json").read_text()
    saved = json.loads(raw)
    assert raw == json.dumps(saved, indent=1, sort_keys=True) + "\n"
    assert saved["options"]["train_steps"] == 40
    assert saved["options"]["learning_rate"] is None
    assert saved["params"] == {"num_classes": 10, "seed": 3}
    assert saved["versions"]["tensorflow"] == tf.__version__
    assert saved["dataset"]["records"] == {"train": 200, "validation": 90}
    before = read_json(model_dir / "train_config.json")
    assert train_job(digits_dataset, model_dir, "--mode=eval", "--eval-split=train") == 0
    shown = capsys.readouterr().out
    assert 'eval_split="train"' in shown
    assert f"tensorflow {tf.__version__}" in shown
    assert read_json(model_dir / "train_config.json") == before
    assert read_json(model_dir / "eval_config.json")["options"]["mode"] == "eval"
    assert next(line.split() for line in shown.splitlines() if line.startswith("evaluate"))[:4] == [
        "evaluate",
        "train",
        "200",
        "40",
    ]
    # Restore the shared fixture.
    assert train_job(digits_dataset, model_dir, "--mode=eval") == 0


def test_writes_a_limited_number_of_predictions_to_output(
    model_dir: Path, digits_dataset: Path, tmp_path: Path
) -> None:
    path = tmp_path / "some.jsonl"
    flags = ["--mode=predict", "--eval-split=train", "--num-predictions=7", f"--output={path}"]
    assert train_job(digits_dataset, model_dir, *flags) == 0
    lines = [json.loads(line) for line in path.read_bytes().splitlines()]
    assert [line["filename"] for line in lines] == [f"{number:04d}.png" for number in range(7)]


def test_rejects_an_unknown_model_parameter(
    digits_dataset: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train_job(digits_dataset, tmp_path / "m", "--param=drop_out=0.3") == 2
    error = capsys.readouterr().err
    assert "mnist_cnn has no parameter 'drop_out'" in error
    assert "Did you mean 'dropout'?" in error
    assert not (tmp_path / "m").exists()


@pytest.mark.parametrize(
    ("flags", "name"), [(["--batch-size=20"], "train"), (["--batch-size=16", "--eval-batch-size=9"], "eval")]
)
def test_reports_a_batch_that_the_replicas_cannot_split_in_one_line(
    flags: list[str],
    name: str,
    digits_dataset: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    topology = dataclasses.replace(make_local_topology(8), is_tpu=True)
    monkeypatch.setattr("tpudata.estimator.tpu_estimator.connect_tpu", lambda _: topology)
    code = train_job(digits_dataset, tmp_path / "model", "--use-tpu", *flags)
    error = capsys.readouterr().err.splitlines()[-1]
    assert code == 2
    assert re.fullmatch(rf"tpudata.*: error: .*{name}_batch_size=\d+\) cannot be split over 8 replicas: .*", error)
    assert not (tmp_path / "model").exists()


def test_passes_the_label_offset_to_the_model(tmp_path: Path) -> None:
    write_digits(tmp_path / "d", {"train": 40, "validation": 20}, label_offset=1)

    def params(*flags: str) -> tuple[int, int]:
        words = ["--model=mnist_cnn", f"--data={tmp_path / 'd'}", f"--model-dir={tmp_path / 'none'}", *flags]
        options = parse_options(words, "train")
        dataset = open_dataset(options.data)
        found = make_model_params(options, dataset, find_label(options, dataset))
        return found["num_classes"], found["label_offset"]

    assert (params("--param=label_offset=0"), params("--param=num_classes=12")) == ((11, 0), (12, 1))
    assert train_job(tmp_path / "d", tmp_path / "m", "--mode=train", "--train-steps=1") == 0
    saved = read_json(tmp_path / "m" / "train_config.json")["params"]
    assert (saved["num_classes"], saved["label_offset"]) == params() == (10, 1)
    assert tf.train.load_variable(str(tmp_path / "m"), "dense_1/bias").shape == (10,)
    assert train_job(tmp_path / "d", tmp_path / "m", "--mode=predict") == 0
    lines = [json.loads(line) for line in (tmp_path / "m" / "predictions.jsonl").read_text().splitlines()]
    assert len(lines) == 20
    assert all(line["label_name"] == str(line["label"] - 1) for line in lines)
    assert all(len(line["predictions"]["probabilities"]) == 10 for line in lines)


def test_rejects_an_offset_above_the_first_label(
    digits_dataset: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train_job(digits_dataset, tmp_path / "m", "--param=label_offset=1") == 2
    assert "is above the first label of " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "code", "message"),
    [
        (
            ["--eval-split=test"],
            1,
            "no split 'test' (it has train, validation). Pass --eval-split train or validation, train without evaluation"
            " (--mode train), or convert again with --split",
        ),
        (["--mode=predict", "--eval-split=test"], 1, "Pass --eval-split train or validation, or convert again"),
        (["--mode=train", "--train-split=test"], 1, "Pass --train-split train or validation, or convert again"),
        (["--mode=eval"], 2, "has no checkpoint. Train first"),
        (["--mode=predict"], 2, "has no checkpoint. Train first"),
        (
            ["--use-tpu", "--master=grpc://127.0.0.1:9"],
            1,
            "RunConfig(master=...): programs run on the machine of their TPU (got 'grpc://127.0.0.1:9'",
        ),
        (["--master=grpc://127.0.0.1:9"], 2, "--master requires --use-tpu"),
        (["--learning-rate=-1"], 2, "argument --learning-rate: '-1' is not a number above 0"),
        (["--model=./own.py"], 2, "or package.module:function). Pass yours as own:model_fn."),
        (["--model=pkg/own.py:f"], 2, "names a file (expected package.module:function). Name the module: pkg.own:f."),
        (["--model=own.f"], 2, "Pass yours as own:f."),
    ],
)
def test_rejected_commands_write_nothing(
    flags: list[str], code: int, message: str, digits_dataset: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "model"
    assert train_job(digits_dataset, folder, *flags) == code
    assert message in capsys.readouterr().err
    assert not folder.exists()


def test_rejects_an_empty_split_before_writing_anything(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = write_digits(tmp_path / "data", {"train": 20, "validation": 20})
    manifest = open_dataset(str(data)).manifest
    for split, modes in (("validation", ["train_and_eval", "eval", "predict", "export"]), ("train", ["train"])):
        splits = {**manifest.splits, split: Split(())}
        write_metadata(str(data), dataclasses.replace(manifest, splits=splits), [str(digit) for digit in range(10)])
        for mode in modes:
            assert train_job(data, tmp_path / "m", f"--mode={mode}") == 1
            assert f"split {split!r} has no records. Choose another split." in capsys.readouterr().err
    assert not (tmp_path / "m").exists()


def test_rejects_outputs_inside_the_dataset(
    model_dir: Path, digits_dataset: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = Path(shutil.copytree(digits_dataset, tmp_path / "data"))
    before = {path: path.read_bytes() for path in data.rglob("*") if path.is_file()}
    (tmp_path / "file").touch()
    predict = ["--mode=predict", f"--output={data}/../data/manifest.json"]
    for folder, flags, message in (
        (model_dir, predict, "is in the dataset's folder"),
        (data, ["--train-steps=1"], "is the dataset's folder. Pass another one."),
        (tmp_path / "file", ["--train-steps=1"], "is a file. Pass a folder"),
    ):
        assert train_job(data, folder, *flags) == 2
        assert message in capsys.readouterr().err
    assert {path: path.read_bytes() for path in data.rglob("*") if path.is_file()} == before
    # A model folder may be inside the dataset's folder.
    assert train_job(data, data / "model", "--mode=train", "--train-steps=1") == 0
    assert train_job(data, data / "model", "--mode=predict", f"--output={data}/model/p.csv") == 0


def test_rejects_unwritable_outputs_before_loading_the_model(
    digits_dataset: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    inside, model_dir = tmp_path / "file" / "inside", tmp_path / "m"
    for folder, flags, code, message in (
        (inside, ["--mode=train"], 1, f"{inside} could not be written: Not a directory"),
        (model_dir, ["--mode=predict", f"--output={inside}.csv"], 1, f"{inside}.csv could not be written: Not a"),
        (model_dir, ["--mode=export", f"--output={inside}"], 1, f"{inside} could not be written: Not a directory"),
        (model_dir, ["--mode=predict", f"--output={tmp_path / 'folder'}"], 2, "is a folder. Pass a file in it"),
        (model_dir, ["--mode=export", f"--output={tmp_path / 'file'}"], 2, "is a file. Pass a folder"),
    ):
        # The model does not exist either, which is checked later.
        assert train_job(digits_dataset, folder, *flags, model="nowhere:model_fn") == code
        assert message in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder"]


def test_rejects_unknown_models(digits_dataset: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert train_job(digits_dataset, tmp_path, model="mnist_cn") == 2
    assert "mnist_cnn" in capsys.readouterr().err
    assert train_job(digits_dataset, tmp_path, model="nowhere.to.be_found:model_fn") == 2
    assert "nowhere" in capsys.readouterr().err


def test_rejects_a_folder_without_a_dataset(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert train_job(tmp_path, tmp_path / "m") == 1
    assert "has no manifest.json" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--image-size=12"], "'dense/kernel' as float32(256, 128), model_fn makes it as float32(576, 128)"),
        (["--image-size=12", "--mode=eval"], "had inputs of a different size. Use another model_dir"),
        (["--image-size=12", "--mode=predict"], "'dense/kernel'"),
    ],
)
def test_a_checkpoint_of_another_model_is_rejected_and_nothing_is_written(
    flags: list[str], message: str, model_dir: Path, digits_dataset: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {path.name: path.read_bytes() for path in model_dir.iterdir() if path.is_file()}
    assert train_job(digits_dataset, model_dir, "--train-steps=50", *flags) == 1
    out, err = capsys.readouterr()
    assert message in err
    assert "configuration" not in out
    assert err.splitlines()[-1].startswith("tpudata: error: ")
    assert {path.name: path.read_bytes() for path in model_dir.iterdir() if path.is_file()} == before


@pytest.mark.parametrize("kind", ["index", "data-00000-of-00001"])
def test_rejects_a_truncated_checkpoint(
    kind: str, model_dir: Path, digits_dataset: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = Path(shutil.copytree(model_dir, tmp_path / "model"))
    path = folder / f"model.ckpt-40.{kind}"
    path.write_bytes(path.read_bytes()[:100])
    assert train_job(digits_dataset, folder, "--mode=eval") == 1
    *_, last = capsys.readouterr().err.splitlines()
    assert last.startswith("tpudata: error: ")
    assert "model.ckpt-40 cannot be read" in last


# Predicts and exports as a user who can only read the model's folder.
READER = """
import sys
from tpudata.cli import main

data, model, output = sys.argv[1:]
common = ["train", "--model=mnist_cnn", f"--data={data}", f"--model-dir={model}"]
for flags in (["--mode=predict", f"--output={output}/p.jsonl"], ["--mode=export", f"--output={output}/export"]):
    assert main([*common, *flags]) == 0
assert main([*common, "--mode=predict"]) == 1
"""


def test_predict_and_export_to_another_folder_only_read_the_model_dir(model_dir: Path, digits_dataset: Path) -> None:
    # Root without this capability may do to its files what their modes allow. Another user might not be able to read the modules
    # that TensorFlow imports late.
    setpriv = shutil.which("setpriv") or ""
    if os.geteuid() == 0 and not setpriv:
        pytest.skip("root may write anywhere, and there is no setpriv")
    without_overriding_modes = [setpriv, "--bounding-set=-dac_override"] if os.geteuid() == 0 else []
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        root.chmod(0o755)
        for name, source in (("model", model_dir), ("data", digits_dataset)):
            copied = Path(shutil.copytree(source, root / name))
            for path in (copied, *copied.rglob("*")):
                path.chmod(0o555 if path.is_dir() else 0o444)
        (root / "out").mkdir()
        (root / "out").chmod(0o777)
        before = {path: path.stat().st_mtime_ns for path in (root / "model").rglob("*")}
        done = subprocess.run(
            [
                *without_overriding_modes,
                sys.executable,
                "-c",
                READER,
                *(str(root / name) for name in ("data", "model", "out")),
            ],
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith("configuration:\n")
        assert "model could not be written: " in done.stderr
        assert {path: path.stat().st_mtime_ns for path in (root / "model").rglob("*")} == before
        assert len((root / "out" / "p.jsonl").read_text().splitlines()) == 90
        assert len([*(root / "out" / "export").iterdir()]) == 1
        for path in (root / "model", *(root / "model").rglob("*"), root / "data", *(root / "data").rglob("*")):
            path.chmod(0o777)


def test_reports_a_wrong_checkpoint_path_in_one_line(
    model_dir: Path, digits_dataset: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "garbage").mkdir()
    (tmp_path / "garbage" / "checkpoint").write_bytes(b"\xff\xfe")
    (tmp_path / "folder" / "checkpoint").mkdir(parents=True)
    (tmp_path / "gone").mkdir()
    (tmp_path / "gone" / "checkpoint").write_text('model_checkpoint_path: "gone"\n')
    for path, code, message in (
        ("/dev/null", 2, "there is no /dev/null.index. Pass a checkpoint of "),
        (f"{digits_dataset}", 2, f"there is no {digits_dataset}.index. Pass a checkpoint of "),
        ("\0", 2, "cannot be the name of a file"),
        ("\udcff", 2, "cannot be the name of a file"),
        ("s3://bucket/model", 2, "TensorFlow has no file system for s3://"),
        (f"{tmp_path / 'garbage'}", 1, "is damaged (expected a line such as"),
        (f"{tmp_path / 'folder'}", 1, "could not be read: "),
        (f"{tmp_path / 'gone'}", 1, "which does not exist"),
    ):
        assert train_job(digits_dataset, model_dir, "--mode=eval", f"--checkpoint={path}") == code
        out, err = capsys.readouterr()
        assert message in err
        assert (len(err.splitlines()), out) == (1, "")


def _folder_in_place_of(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _save_step(folder: Path, step: Any) -> None:
    """Replace the global step of a checkpoint."""
    values = {name: tf.train.load_variable(str(folder), name) for name, _ in tf.train.list_variables(str(folder))}
    values["global_step"] = np.asarray(step)
    tf.raw_ops.SaveV2(
        prefix=str(folder / "model.ckpt-40"),
        tensor_names=list(values),
        shape_and_slices=[""] * len(values),
        tensors=list(values.values()),
    )


@pytest.mark.parametrize("mode", ["train", "eval", "predict", "export"])
def test_each_mode_reports_an_unusable_checkpoint_in_one_line(
    mode: str, model_dir: Path, digits_dataset: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    damages: list[tuple[Callable[[Path], Any], str]] = [
        (lambda folder: _folder_in_place_of(folder / "model.ckpt-40.index"), "cannot be read: "),
        (lambda folder: _folder_in_place_of(folder / "model.ckpt-40.data-00000-of-00001"), "cannot be read: "),
        (lambda folder: (folder / "model.ckpt-40.index").write_bytes(b"x" * 500), "cannot be read: not an"),
        (lambda folder: _save_step(folder, [1, 2]), "global_step: not a step (got int64(2,), expected one integer"),
        (lambda folder: _save_step(folder, b"x"), "global_step: not a step (got b'x', expected one integer"),
        (lambda folder: _save_step(folder, math.nan), "global_step: not a step (got nan, expected one integer"),
        (lambda folder: _save_step(folder, -3), "global_step: not a step (got -3, expected one integer"),
    ]
    for number, (damage, message) in enumerate(damages):
        folder = Path(shutil.copytree(model_dir, tmp_path / f"{number}"))
        damage(folder)
        assert train_job(digits_dataset, folder, f"--mode={mode}", "--train-steps=50") == 1
        (line,) = [line for line in capsys.readouterr().err.splitlines() if "error" in line]
        assert line.startswith(f"tpudata: error: {folder / 'model.ckpt-40'}")
        assert message in line


@pytest.mark.parametrize(
    ("flag", "code", "message"),
    [
        ("--model=mnist_cn", 2, "Did you mean 'mnist_cnn'"),
        ("--model=no_such_package:model_fn", 2, "no module 'no_such_package'"),
        ("--tpu-name=t", 2, "--tpu-name requires --use-tpu"),
        ("--model-dir=s3://bucket/model", 2, "TensorFlow has no file system for s3://"),
        ("--data=gs://bucket/data", 1, "gs://bucket/data"),
        ("--data=nowhere", 1, "nowhere"),
        ("--eval-split=test", 1, "no split 'test'"),
    ],
)
def test_rejects_wrong_names_before_loading_tensorflow(
    flag: str,
    code: int,
    message: str,
    digits_dataset: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Any,
) -> None:
    def load(feature: str) -> None:
        raise AssertionError("TensorFlow is loaded")

    monkeypatch.setattr("tpudata.train.job.require_tensorflow", load)
    words = ["--model=mnist_cnn", f"--data={digits_dataset}", f"--model-dir={tmp_path / 'm'}"]
    assert main(["train", *words, flag]) == code
    assert message in capsys.readouterr().err


def test_reports_an_undecodable_image_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = write_undecodable(str(tmp_path / "data"))
    assert train_job(Path(data), tmp_path / "model", "--train-steps=20", "--batch-size=8", "--mode=train") == 1
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("tpudata: error:")]
    assert line.startswith("tpudata: error: an encoded image does not decode: Invalid PNG data, size ")


def test_reports_a_damaged_record_in_one_line(
    digits_dataset: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "data"
    shutil.copytree(digits_dataset, data)
    shard = sorted(data.glob("train-*.tfrecord"))[0]
    damaged = bytearray(shard.read_bytes())
    damaged[60] ^= 1
    shard.write_bytes(damaged)
    assert train_job(data, tmp_path / "model", "--train-steps=20") == 1
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("tpudata: error:")]
    assert line.startswith(f"tpudata: error: {shard} at byte 0: the record is damaged or cut.")

"""Evaluation at each checkpoint, early stopping, export, and predictions as CSV.

Tests of early stopping make up losses: a model's own do not rise when a test needs it.
"""

from __future__ import annotations

import csv
import json
import logging
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tpudata.cli import main
from tpudata.errors import StorageError, TpudataError
from tpudata.estimator import CheckpointError
from tpudata.format import decode_example, open_dataset, read_records
from tpudata.train.evaluation import Evaluation
from tpudata.train.options.train_options import TrainOptions


def _train(data: Path, model_dir: Path, *flags: str, model: str = "mnist_cnn") -> int:
    common = [f"--model={model}", f"--data={data}", f"--model-dir={model_dir}", "--batch-size=32", "--iterations=10"]
    return main(["train", *common, *flags])


def _json(path: Path) -> Any:
    return json.loads(path.read_bytes())


def stored_records(data: Path, split: str) -> list[bytes]:
    """Return the records of a split as they are stored, serialized Examples."""
    dataset = open_dataset(str(data))
    paths = [dataset.shard_path(shard) for shard in dataset.manifest.split(split).shards]
    return [record for path in paths for _, record in read_records(path)]


@pytest.fixture(scope="module")
def model_dir(digits_dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A mnist_cnn after 30 steps with checkpoints at 0, 10, 20 and 30."""
    folder = tmp_path_factory.mktemp("model")
    flags = ["--mode=train", "--train-steps=30", "--save-checkpoints-steps=10"]
    assert _train(digits_dataset, folder, *flags) == 0
    return folder


def test_exports_and_predictions_come_from_the_chosen_checkpoint(
    model_dir: Path, digits_dataset: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [record["image/encoded"][0] for record in open_dataset(str(digits_dataset)).examples("validation")]
    images = tf.stack([tf.io.decode_png(file) for file in files])
    records = stored_records(digits_dataset, "validation")
    predicted = []
    for name, flags in (("newest", []), ("other", [f"--checkpoint={model_dir / 'model.ckpt-10'}"])):
        capsys.readouterr()
        output = [] if name == "newest" else [f"--output={tmp_path / 'export'}"]
        assert _train(digits_dataset, model_dir, "--mode=export", *output, *flags) == 0
        (path,) = re.findall(
            r"^exported: (\S+), with inputs image uint8 \[None, 8, 8, 1\]\nother signatures: encoded_images, examples$",
            capsys.readouterr().out,
            re.MULTILINE,
        )
        assert Path(path).parent == (model_dir if name == "newest" else tmp_path) / "export"
        signatures = tf.saved_model.load(path).signatures
        assert sorted(signatures) == ["encoded_images", "examples", "serving_default"]
        served = signatures["serving_default"](image=images)
        for other in (
            signatures["encoded_images"](encoded_images=tf.constant(files)),
            signatures["examples"](examples=tf.constant(records)),
        ):
            for key, value in served.items():
                np.testing.assert_array_equal(other[key], value)
        table = tmp_path / f"{name}.csv"
        assert _train(digits_dataset, model_dir, "--mode=predict", f"--output={table}", *flags) == 0
        with table.open(newline="") as file:
            rows = list(csv.DictReader(file))
        assert len(rows) == 90
        assert [int(row["classes"]) for row in rows] == served["classes"].numpy().tolist()
        predicted.append([json.loads(row["probabilities"]) for row in rows])
        np.testing.assert_allclose(predicted[-1], served["probabilities"], rtol=1e-4, atol=1e-6)
        assert [row["class_name"] for row in rows] == [row["classes"] for row in rows]
        assert [*rows[0]] == [
            "index",
            "filename",
            "label",
            "label_name",
            "class_name",
            *(name for name in rows[0] if name in ("classes", "probabilities")),
        ]
    assert not np.allclose(predicted[0], predicted[1])


def test_a_text_generator_continues_a_prompt(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "text.txt").write_text("abcdefgh" * 200)
    words = [
        "--tokenizer=chars",
        "--sequence-length=16",
        f"--input={tmp_path / 'text.txt'}",
        f"--output={tmp_path / 'd'}",
    ]
    assert main(["convert", "text", *words]) == 0
    flags = [
        "--param=hidden_units=16",
        "--param=max_new_tokens=12",
        "--param=learning_rate=0.05",
        "--param=temperature=0",
    ]
    train = [*flags, "--mode=train", "--train-steps=60"]
    assert _train(tmp_path / "d", tmp_path / "m", *train, model="char_lstm") == 0
    capsys.readouterr()
    predict = [*flags, "--mode=predict", "--prompt=fgh", "--num-predictions=2"]
    assert _train(tmp_path / "d", tmp_path / "m", *predict, model="char_lstm") == 0
    assert capsys.readouterr().out.count("\nfghabcdefghabcd\n") == 2
    lines = [json.loads(line) for line in (tmp_path / "m" / "predictions.jsonl").read_text().splitlines()]
    assert lines == [{"index": number, "prompt": "fgh", "text": "abcdefghabcd"} for number in range(2)]
    # With another temperature the two would differ.
    warm = [*predict, "--param=temperature=5", f"--output={tmp_path / 'p.csv'}"]
    assert _train(tmp_path / "d", tmp_path / "m", *warm, model="char_lstm") == 0
    with (tmp_path / "p.csv").open(newline="") as file:
        assert len({row["text"] for row in csv.DictReader(file)}) == 2
    for prompt, message in (("xyz", "--prompt 'xyz'"), ("", "gives no token")):
        words = [*flags, "--mode=predict", f"--prompt={prompt}"]
        assert _train(tmp_path / "d", tmp_path / "m", *words, model="char_lstm") == 2
        assert message in capsys.readouterr().err
    folder = tmp_path / "out"
    export = ["--mode=export", f"--output={folder}", "--eval-split=train"]
    assert _train(tmp_path / "d", tmp_path / "m", *flags, *export, model="char_lstm") == 0
    (path,) = folder.iterdir()
    assert f"exported: {path}, with inputs input_ids int32 [None, 16]" in capsys.readouterr().out
    prompts = tf.constant([[1] * 16, [2] * 16, [3] * 16])
    signatures = tf.saved_model.load(str(path)).signatures
    assert sorted(signatures) == ["examples", "serving_default"]
    served = signatures["serving_default"](input_ids=prompts)
    assert served["generated_ids"].shape == (3, 12)
    records = stored_records(tmp_path / "d", "train")[:3]
    ids: list[Any] = [decode_example(record)["input_ids"][0] for record in records]
    prompts = tf.constant([np.frombuffer(item, "<i4") for item in ids])
    for key, value in signatures["serving_default"](input_ids=prompts).items():
        np.testing.assert_array_equal(signatures["examples"](examples=tf.constant(records))[key], value)


def test_rejects_a_prompt_without_a_tokenizer(
    model_dir: Path, digits_dataset: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _train(digits_dataset, model_dir, "--mode=predict", "--prompt=a") == 1
    assert "tokenizer" in capsys.readouterr().err


def test_rejects_an_export_without_a_checkpoint(
    digits_dataset: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _train(digits_dataset, tmp_path / "m", "--mode=export") == 2
    assert "--mode export" in capsys.readouterr().err


def test_continuous_evaluation_evaluates_each_checkpoint(
    model_dir: Path, digits_dataset: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _train(digits_dataset, model_dir, "--mode=eval", "--continuous", "--train-steps=30") == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines() if line.startswith("evaluate")]
    assert [row[3] for row in rows] == ["0", "10", "20", "30"]
    assert len({row[4] for row in rows}) == 4
    assert _json(model_dir / "evaluation.json")["global_step"] == 30


class Waits(logging.Handler):
    """Calls the next of some functions whenever an evaluation starts to wait."""

    def __init__(self, *things: Callable[[], None]) -> None:
        super().__init__(logging.INFO)
        self._things = list(things)

    def emit(self, record: logging.LogRecord) -> None:
        if record.getMessage().startswith("Waiting up to ") and self._things:
            self._things.pop(0)()


def test_continuous_evaluation_waits_for_checkpoints(
    digits_dataset: Path,
    tmp_path: Path,
    model_dir: Path,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    folder = tmp_path / "m"

    def appear(step: int) -> None:
        folder.mkdir(exist_ok=True)
        for part in ("index", "data-00000-of-00001"):
            name = f"model.ckpt-{step}.{part}"
            (folder / name).write_bytes((model_dir / name).read_bytes())
        text = f'model_checkpoint_path: "model.ckpt-{step}"\nall_model_checkpoint_paths: "model.ckpt-{step}"\n'
        (folder / "checkpoint").write_text(text)

    appear(20)
    waits = Waits(lambda: appear(30))
    logging.getLogger("tpudata").addHandler(waits)
    flags = ["--mode=eval", "--continuous", "--train-steps=30", "--continuous-timeout=100"]
    with caplog.at_level(logging.INFO, logger="tpudata"):
        assert _train(digits_dataset, folder, *flags) == 0
    logging.getLogger("tpudata").removeHandler(waits)
    rows = [line.split() for line in capsys.readouterr().out.splitlines() if line.startswith("evaluate")]
    assert [row[3] for row in rows] == ["20", "30"]


def test_waiting_for_checkpoints_ends_at_the_timeout(
    model_dir: Path, digits_dataset: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    waiting = ["--mode=eval", "--continuous", "--continuous-timeout=0.1"]
    assert _train(digits_dataset, tmp_path / "m", *waiting) == 1
    error = capsys.readouterr().err.splitlines()[-1]
    assert "no checkpoint appeared in" in error
    assert "within 0.1 seconds (--continuous-timeout)" in error
    assert not (tmp_path / "m" / "evaluation.json").exists()
    assert _train(digits_dataset, model_dir, *waiting, "--train-steps=40") == 0
    assert "no checkpoint after step 30 within 0.1 seconds" in capsys.readouterr().out


def test_skips_a_checkpoint_removed_before_it_is_read(
    model_dir: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = Path(shutil.copytree(model_dir, tmp_path / "m"))

    class Estimator:
        """An estimator whose first checkpoint training has just removed."""

        def evaluate(self, _: Any, checkpoint_path: str) -> dict[str, Any]:
            step = int(checkpoint_path.rpartition("-")[2])
            if step == 0:
                Path(f"{checkpoint_path}.index").unlink()
            if step != 10:
                raise CheckpointError(f"{checkpoint_path} cannot be read")
            return {"loss": 1.0, "global_step": step}

    options = TrainOptions("m", "d", str(folder), mode="eval", continuous=True)
    evaluation = Evaluation(Estimator(), options, lambda: None, 1)  # type: ignore[arg-type]
    with caplog.at_level("INFO"), pytest.raises(CheckpointError, match="ckpt-20 cannot be read"):
        evaluation.run_continuously()
    assert "model.ckpt-0 was removed before it could be evaluated." in caplog.text
    assert evaluation.metrics["global_step"] == 10


# Its loss in evaluation is best at step 4.
STOPPING_MODEL = """
import tensorflow as tf
from tpudata.estimator import TPUEstimatorSpec

def model_fn(features, labels, mode):
    step = tf.compat.v1.train.get_global_step()
    kernel = tf.compat.v1.get_variable("kernel", [])
    loss = tf.cast(tf.abs(step - 4), tf.float32) + 0 * kernel
    metrics = (lambda x: {"my_accuracy": tf.compat.v1.metrics.mean(-x)}, [tf.reshape(loss, [1])])
    return TPUEstimatorSpec(mode, loss=loss, train_op=step.assign_add(1), eval_metrics=metrics)
"""


@pytest.fixture
def stopping(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, digits_dataset: Path) -> Any:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "stopping_model.py").write_text(STOPPING_MODEL)

    def train(folder: str, *flags: str) -> int:
        flags = ("--train-steps=20", "--save-checkpoints-steps=2", *flags)
        return _train(digits_dataset, tmp_path / folder, *flags, model="stopping_model:model_fn")

    return train


def test_training_stops_when_the_metric_stops_improving(
    stopping: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--early-stop-metric=my_accuracy", "--early-stop-patience=1"]
    assert stopping("m", *flags) == 0
    out = capsys.readouterr().out
    assert "stopped at step 6: my_accuracy was best at step 4, 0.0000, without improvement in 1 evaluation since" in out
    assert f"kept in {tmp_path / 'm' / 'best'}: --checkpoint best" in out
    rows = [line.split() for line in out.splitlines() if line.startswith(("train", "evaluate"))]
    assert [row[3] for row in rows] == ["6", "2", "4", "6"]
    assert [item["step"] for item in _json(tmp_path / "m" / "early_stopping.json")["evaluations"]] == [2, 4, 6]
    # A stopped run stays stopped, and more patience continues it.
    assert stopping("m", *flags) == 0
    assert _json(tmp_path / "m" / "evaluation.json")["global_step"] == 6
    assert stopping("m", flags[0], "--early-stop-patience=2") == 0
    assert _json(tmp_path / "m" / "evaluation.json")["global_step"] == 8


def test_an_interrupted_run_stops_at_the_same_step_and_keeps_the_best_checkpoint(
    stopping: Any, tmp_path: Path, digits_dataset: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--early-stop-metric=loss", "--early-stop-patience=1"]
    assert stopping("m", *flags, "--train-steps=2") == 0
    # This run stops between two evaluations.
    assert stopping("m", "--train-steps=3", "--mode=train") == 0
    assert stopping("m", *flags) == 0
    history = _json(tmp_path / "m" / "early_stopping.json")["evaluations"]
    assert [item["step"] for item in history] == [2, 4, 6]
    folder = tmp_path / "m" / "best"
    assert sorted(path.name for path in folder.iterdir()) == [
        "checkpoint",
        "model.ckpt-4.data-00000-of-00001",
        "model.ckpt-4.index",
    ]
    used = {"best": 4, str(folder): 4, str(tmp_path / "m" / "model.ckpt-6.index"): 6}
    for checkpoint, step in used.items():
        words = ["--mode=eval", f"--checkpoint={checkpoint}"]
        assert _train(digits_dataset, tmp_path / "m", *words, model="stopping_model:model_fn") == 0
        found = _json(tmp_path / "m" / "evaluation.json")
        assert (found["global_step"], found["loss"]) == (step, abs(step - 4))
    capsys.readouterr()
    words = ["--mode=eval", f"--checkpoint={tmp_path / 'm' / 'model.ckpt-5'}"]
    assert _train(digits_dataset, tmp_path / "m", *words, model="stopping_model:model_fn") == 2
    assert "model.ckpt-4, " in capsys.readouterr().err
    words = ["--mode=eval", "--checkpoint=best"]
    assert _train(digits_dataset, tmp_path / "n", *words, model="stopping_model:model_fn") == 2
    assert "Train with --early-stop-metric, which keeps the best one there" in capsys.readouterr().err
    # After a return to an older checkpoint, evaluations of later ones no longer count.
    (tmp_path / "m" / "checkpoint").write_text('model_checkpoint_path: "model.ckpt-4"\n')
    assert stopping("m", *flags) == 0
    assert _json(tmp_path / "m" / "evaluation.json")["global_step"] == 6


def test_rejects_an_unknown_metric_before_training(
    stopping: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert stopping("n", "--early-stop-metric=my_acuracy") == 2
    assert "no such metric; did you mean my_accuracy? It has my_accuracy, loss." in capsys.readouterr().err
    # The error comes before training.
    assert not (tmp_path / "n").exists()


class Trained:
    """A model whose loss is the distance from step 4."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.step = 0

    def train(self, step: int) -> int:
        self.step = step
        (self._folder / f"model.ckpt-{step}.index").touch()
        return step

    def evaluate(self, _: Any, checkpoint_path: str | None) -> dict[str, Any]:
        del checkpoint_path
        return {"loss": float(abs(self.step - 4)), "global_step": self.step}

    def latest_checkpoint(self) -> str:
        return str(self._folder / f"model.ckpt-{self.step}")


def stop_early(folder: Path, trained: Trained, **options: Any) -> Evaluation:
    known = TrainOptions(
        "m", "d", str(folder), train_steps=20, save_checkpoints_steps=2, early_stop_metric="loss", **options
    )
    evaluation = Evaluation(trained, known, lambda: None, 1)  # type: ignore[arg-type]
    evaluation.train_with_early_stopping(trained.train, trained.step)
    return evaluation


def test_keeps_the_best_checkpoint_for_each_goal(tmp_path: Path) -> None:
    for goal, patience, best, last in (("min", 2, 4, 8), ("max", 1, 2, 4), (None, 3, 4, 10)):
        folder = tmp_path / str(goal)
        folder.mkdir()
        evaluation = stop_early(folder, Trained(folder), early_stop_goal=goal, early_stop_patience=patience)
        assert evaluation.metrics["global_step"] == last
        assert tf.train.latest_checkpoint(str(folder / "best")) == str(folder / "best" / f"model.ckpt-{best}")


def test_keeps_the_best_checkpoint_in_a_folder_whose_name_is_a_pattern(tmp_path: Path) -> None:
    folder = tmp_path / "m[1]*"
    folder.mkdir()
    stop_early(folder, Trained(folder), early_stop_patience=1)
    assert sorted(path.name for path in (folder / "best").iterdir()) == ["checkpoint", "model.ckpt-4.index"]


def test_the_previous_best_checkpoint_may_be_gone_before_it_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remove = tf.io.gfile.remove

    def remove_after_another(path: str) -> None:
        Path(path).unlink()
        remove(path)

    monkeypatch.setattr(tf.io.gfile, "remove", remove_after_another)
    assert stop_early(tmp_path, Trained(tmp_path), early_stop_patience=1).metrics["global_step"] == 6
    assert sorted(path.name for path in (tmp_path / "best").iterdir()) == ["checkpoint", "model.ckpt-4.index"]


def test_a_previous_best_checkpoint_that_cannot_be_removed_is_an_error_that_names_it(tmp_path: Path) -> None:
    # A folder where a file is expected.
    (tmp_path / "best" / "model.ckpt-2.index.copy").mkdir(parents=True)
    with pytest.raises(
        StorageError, match=r"best/model\.ckpt-2, no longer the best, could not be removed: .+\. Remove"
    ):
        stop_early(tmp_path, Trained(tmp_path), early_stop_patience=1)
    assert tf.train.latest_checkpoint(str(tmp_path / "best")) == str(tmp_path / "best" / "model.ckpt-4")


def test_values_of_another_split_do_not_stop_training(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trained = Trained(tmp_path)
    assert stop_early(tmp_path, trained, early_stop_patience=1).metrics["global_step"] == 6
    assert stop_early(tmp_path, trained, early_stop_patience=1).metrics["global_step"] == 6
    assert "starts again" not in capsys.readouterr().out
    # The loss has grown since step 4, but on other records.
    assert stop_early(tmp_path, trained, early_stop_patience=1, eval_split="test").metrics["global_step"] == 8
    out = capsys.readouterr().out
    assert "early stopping starts again: its values of before are loss of 1 record in validation\n" in out
    assert _json(tmp_path / "early_stopping.json")["split"] == "test"


RECORD = '{"metric": "loss", "split": "validation", "records": 1, "evaluations": [%s]}'


@pytest.mark.parametrize("text", ["", "[]", RECORD % 1, RECORD % '{"step": Infinity, "value": 1}', "[" * 100_000])
def test_rejects_a_damaged_record_of_evaluations(text: str, tmp_path: Path) -> None:
    (tmp_path / "early_stopping.json").write_text(text)
    with pytest.raises(TpudataError, match=r"early_stopping\.json is damaged\. Remove it"):
        stop_early(tmp_path, Trained(tmp_path))


def test_early_stopping_and_profiling_do_not_change_the_variables(
    model_dir: Path, digits_dataset: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    flags = ["--train-steps=20", "--save-checkpoints-steps=10", "--early-stop-metric=loss", "--early-stop-patience=9"]
    with caplog.at_level(logging.INFO, logger="tpudata"):
        assert _train(digits_dataset, tmp_path / "m", *flags, "--profile=2:3") == 0
    (trace,) = tmp_path.glob("m/plugins/profile/*/*.xplane.pb")
    assert trace.stat().st_size > 1000
    assert f"Profiled steps 2 to 3: tensorboard --logdir {tmp_path / 'm'}" in caplog.text
    paths = [str(folder / "model.ckpt-20") for folder in (model_dir, tmp_path / "m")]
    names = [name for name, _ in tf.train.list_variables(paths[0])]
    assert len(names) > 4
    for name in names:
        np.testing.assert_array_equal(*(tf.train.load_variable(path, name) for path in paths))

"""Training that continues in a folder with other settings.

One test divides the input among hosts, which are processes of a cluster otherwise.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.helpers.datasets import write_dataset
from tests.train.jobs import read_json
from tpudata import make_input_fn
from tpudata.cli import main
from tpudata.format import Feature
from tpudata.storage.claims.claim import PROCESS, Claim
from tpudata.storage.claims.hold import hold_claim
from tpudata.train.continued_input import ContinuedInput
from tpudata.train.outputs.history import Section

RECORDS = 200
# Its checkpoints count how often each record was fed.
COUNTING_MODEL = """
import tensorflow as tf
from tpudata.estimator import TPUEstimatorSpec

def model_fn(features, labels, mode, params):
    v1 = tf.compat.v1
    fed = tf.reduce_sum(tf.one_hot(features["id"], 200), axis=0)
    counts = v1.get_variable("counts", [200], initializer=v1.zeros_initializer(), trainable=False).assign_add(fed)
    with tf.control_dependencies([counts]):
        train_op = v1.train.get_global_step().assign_add(1)
    return TPUEstimatorSpec(mode, loss=0 * v1.get_variable("kernel", []), train_op=train_op)
"""


def write_numbers(folder: Path, count: int = RECORDS, offset: int = 0) -> Path:
    features = [Feature("id", "int64", "int64", num_classes=300, label_offset=offset)]
    write_dataset(str(folder), {"train": [{"id": n} for n in range(count)]}, features, layout="numbers")
    return folder


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_numbers(tmp_path_factory.mktemp("numbers") / "data")


@pytest.fixture(autouse=True)
def _own_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "counting_model.py").write_text(COUNTING_MODEL)


def train(data: Path, steps: int, batch_size: int, *flags: str, folder: str = "m") -> int:
    common = ["--model=counting_model:model_fn", f"--data={data}", f"--model-dir={folder}", "--mode=train"]
    return main(["train", *common, f"--train-steps={steps}", f"--batch-size={batch_size}", *flags])


def counts(folder: str = "m") -> list[int]:
    """Return how often records were fed: the numbers that occur, without repetitions."""
    return sorted({int(count) for count in tf.train.load_variable(folder, "counts")})


def test_lists_an_added_param_of_value_0(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert train(data, 6, 20) == 0
    assert train(data, 7, 20, "--param", "rate=0") == 0
    assert "\n  params.rate=null -> 0\n" in capsys.readouterr().out


def test_changing_batch_sizes_keeps_each_record_once_per_epoch(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert train(data, 6, 20) == 0
    assert "with other settings" not in capsys.readouterr().out
    # After 120 records, a batch ends inside one of the order's batches, and the next begins there.
    assert train(data, 7, 16) == 0
    out = capsys.readouterr().out
    assert "training continues after step 6 with other settings (before -> now):\n" in out
    assert "  train_steps=6 -> 7\n  batch_size=20 -> 16\n" in out
    assert (
        "the order of the records stays that of batches of 20, and the next batch begins at record 120 of its order:"
        in out
    )
    assert train(data, 15, 8) == 0
    assert counts() == [1]
    # A run that ends before its first checkpoint trains nothing, and changes nothing.
    history = read_json(Path("m/train_history.json"))
    cut_off = {**history["sections"][-1], "first_step": 15, "position": 200}
    cut_off["configuration"] = json.loads(
        json.dumps(cut_off["configuration"]).replace('"batch_size": 8', '"batch_size": 7')
    )
    Path("m/train_history.json").write_text(json.dumps({"sections": [*history["sections"], cut_off]}))
    assert train(data, 19, 50) == 0
    assert counts() == [2]
    sizes = [
        item["configuration"]["options"]["batch_size"] for item in read_json(Path("m/train_history.json"))["sections"]
    ]
    assert sizes == [20, 16, 8, 7, 50]
    # After a return to an older checkpoint and its settings, later sections no longer count.
    shutil.copytree("m", "back")
    Path("back/checkpoint").write_text('model_checkpoint_path: "model.ckpt-7"\n')
    assert train(data, 15, 8, folder="back") == 0
    assert counts("back") == [1]
    assert train(data, 40, 8, folder="back") == 0
    assert counts("back") == [2]


def test_continues_a_run_of_an_earlier_version_without_a_history(data: Path) -> None:
    assert train(data, 6, 20) == 0
    Path("m/train_history.json").unlink()
    record = read_json(Path("m/train_config.json"))
    del record["dataset"]["split_digest"], record["dataset"]["kept_records"], record["options"]["allow_other_data"]
    Path("m/train_config.json").write_text(json.dumps(record))
    assert train(data, 16, 8) == 0
    assert counts() == [1]
    sections = read_json(Path("m/train_history.json"))["sections"]
    assert [(item["first_step"], item["position"], item["order_batch_size"]) for item in sections] == [
        (0, 0, 20),
        (6, 120, 20),
    ]
    assert sections[0]["configuration"] == record


def test_rejects_another_dataset_unless_it_is_allowed(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(data, tmp_path / "moved")
    fewer = write_numbers(tmp_path / "fewer", 100)
    # The same bytes in its shards, with another meaning.
    from_1 = write_numbers(tmp_path / "from_1", offset=1)
    assert train(data, 2, 20) == 0
    before = {path: path.read_bytes() for path in Path("m").iterdir()}
    for other, code in ((from_1, 2), (fewer, 2), (tmp_path / "moved", 0)):
        capsys.readouterr()
        assert train(other, 4, 20) == code
        out, err = capsys.readouterr()
        if code == 2:
            assert "m: up to step 2 it was trained on different records (got " in err
            assert f"{other} with {100 if other == fewer else 200} records in train, " in err
            assert "or --allow-other-data to continue on this one." in err
            assert {path: path.read_bytes() for path in Path("m").iterdir()} == before
        else:
            assert f'data="{data}" -> "{other}"' in out
    # Its first epoch then begins with the first batch.
    assert train(fewer, 9, 20, "--allow-other-data") == 0
    assert "the other dataset is read from its first record on" in capsys.readouterr().out
    fed = [tf.train.load_variable(f"m/model.ckpt-{step}", "counts") for step in (4, 9)]
    np.testing.assert_array_equal(fed[1] - fed[0], [1] * 100 + [0] * 100)
    # Without earlier training there is nothing to compare.
    assert train(data, 1, 20, folder="new") == 0


def test_lists_changed_settings_and_keeps_earlier_sections(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert train(data, 2, 20, "--param=schedule=a") == 0
    first = read_json(Path("m/train_config.json"))
    capsys.readouterr()
    assert train(data, 4, 20, "--seed=1", "--learning-rate=0.5", "--param=schedule=b") == 0
    out = capsys.readouterr().out
    for line in (
        "  seed=0 -> 1\n",
        "  learning_rate=null -> 0.5\n",
        '  params.schedule="a" -> "b"\n',
        "in this epoch, some come twice and others not at all",
    ):
        assert line in out
    sections = read_json(Path("m/train_history.json"))["sections"]
    assert [item["configuration"] for item in sections] == [first, read_json(Path("m/train_config.json"))]
    # Nothing is trained, so nothing is recorded.
    before = Path("m/train_config.json").read_bytes()
    assert train(data, 3, 20, "--learning-rate=0.7") == 0
    assert Path("m/train_config.json").read_bytes() == before
    assert read_json(Path("m/train_history.json"))["sections"] == sections


def test_a_concurrent_run_changes_no_file_of_the_first(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert train(data, 2, 20) == 0
    with hold_claim("m", Claim.new(PROCESS)):
        before = {path: path.read_bytes() for path in Path("m").iterdir()}
        assert train(data, 4, 8) == 1
        assert {path: path.read_bytes() for path in Path("m").iterdir()} == before
    assert "m: another run is at work there" in capsys.readouterr().err
    assert train(data, 10, 20) == 0
    assert counts() == [1]


def test_reports_a_damaged_history_in_one_line(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert train(data, 1, 20) == 0
    path = Path("m/train_history.json")
    first = read_json(path)["sections"][0]
    damages: list[Any] = [
        [],
        {"sections": 3},
        {"sections": [{**first, "position": -1}]},
        {"sections": [{**first, "order_batch_size": 0}]},
        {"sections": [{**first, "first_step": "0"}]},
        {"sections": [{**first, "configuration": {"options": []}}]},
        {"sections": [{**first, "configuration": {**first["configuration"], "params": []}}]},
    ]
    for damaged in damages:
        capsys.readouterr()
        path.write_text(json.dumps(damaged))
        assert train(data, 2, 20) == 1
        (line,) = [line for line in capsys.readouterr().err.splitlines() if "error" in line]
        assert line.startswith("tpudata: error: m/train_history.json is damaged")


def test_hosts_together_feed_the_batches_of_one_host(data: Path) -> None:
    made = make_input_fn(str(data), "train", training=True, seed=0)
    section = Section(3, 72, 24, {"options": {"batch_size": 16}})
    cut = ContinuedInput(made, section)

    def fed(batch_size: int, context: tf.distribute.InputContext | None = None) -> list[Any]:
        batches = cut({"batch_size": batch_size}, context, 5)
        assert batches.element_spec["id"].shape == (batch_size,)
        assert batches.cardinality() == tf.data.INFINITE_CARDINALITY
        return [batch["id"] for batch in batches.take(8).as_numpy_iterator()]

    whole = fed(16)
    # As in the order: 2 steps of 16 records after the 72.
    order = [batch["id"] for batch in made({"batch_size": 24}).take(12).as_numpy_iterator()]
    np.testing.assert_array_equal(np.concatenate(whole), np.concatenate(order)[104 : 104 + 128])
    parts = [fed(4, tf.distribute.InputContext(2, host, 4)) for host in range(2)]
    for step in range(4):
        found = [part[2 * step + n] for part in parts for n in range(2)]
        np.testing.assert_array_equal(np.concatenate(found), whole[step])

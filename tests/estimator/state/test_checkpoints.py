import functools
import os
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.estimator import programs
from tests.estimator.programs import finite_input_fn, make_estimator, make_model_fn, newest_step, train_input_fn, v1
from tpudata.errors import StorageError, TpudataError
from tpudata.estimator import CheckpointError, CrossShardOptimizer, ModeKeys, TPUEstimator, TPUEstimatorSpec
from tpudata.estimator.state.checkpoint import Checkpoint


def momentum() -> Any:
    return v1.train.MomentumOptimizer(0.05, 0.9)


def test_tensorflow_reads_the_variable_names(tmp_path: Path) -> None:
    make_estimator(tmp_path, make_model_fn(momentum)).train(train_input_fn, steps=5)
    assert tf.train.latest_checkpoint(str(tmp_path)) == str(tmp_path / "model.ckpt-5")
    assert tf.train.load_checkpoint(str(tmp_path)).get_variable_to_shape_map() == {
        "global_step": [],
        "linear/w": [3, 1],
        "linear/b": [1],
        "linear/w/Momentum": [3, 1],
        "linear/b/Momentum": [1],
    }
    assert tf.train.load_variable(str(tmp_path), "global_step").dtype == np.int64


@pytest.mark.parametrize(("keep", "left"), [(1, 1), (0, 6)])
def test_keep_checkpoint_max_keeps_the_newest_checkpoints(keep: int | None, left: int, tmp_path: Path) -> None:
    (tmp_path / "model.ckpt-4.notes").write_text("not ours, but of that checkpoint")
    (tmp_path / "model.ckpt-40.index.bak").write_text("no checkpoint that was written here")
    make_estimator(tmp_path, save_checkpoints_steps=4, keep_checkpoint_max=keep).train(train_input_fn, steps=20)
    expected = [0, 4, 8, 12, 16, 20][-left:]
    steps = programs.saved_steps(tmp_path)
    assert steps == expected
    state = tf.train.get_checkpoint_state(str(tmp_path))
    assert state.all_model_checkpoint_paths == [str(tmp_path / f"model.ckpt-{step}") for step in expected]
    assert len(list(tmp_path.glob("model.ckpt-*.data-*"))) == left
    assert (tmp_path / "model.ckpt-40.index.bak").exists()


def test_keep_checkpoint_max_counts_checkpoints_of_earlier_estimators(tmp_path: Path) -> None:
    for limit in (4, 8, 12):
        make_estimator(tmp_path, keep_checkpoint_max=2).train(train_input_fn, max_steps=limit)
    assert sorted(path.name for path in tmp_path.glob("*.index")) == ["model.ckpt-12.index", "model.ckpt-8.index"]


def test_training_continues_in_a_moved_folder(tmp_path: Path) -> None:
    make_estimator(tmp_path / "a [1]").train(train_input_fn, steps=4)
    shutil.move(tmp_path / "a [1]", tmp_path / "b")
    estimator = make_estimator(tmp_path / "b", keep_checkpoint_max=2)
    estimator.train(train_input_fn, steps=4)
    assert estimator.latest_checkpoint() == str(tmp_path / "b" / "model.ckpt-8")
    assert not (tmp_path / "b" / "model.ckpt-0.index").exists()


def write_with_a_v1_saver(folder: Path, optimizer: Any, steps: int) -> dict[str, Any]:
    """A checkpoint as a v1 program writes it."""
    folder.mkdir()
    with tf.Graph().as_default(), v1.Session() as session:
        step = v1.train.get_or_create_global_step()
        loss = tf.reduce_mean((programs.linear(tf.constant(programs.X)) - programs.Y) ** 2)
        train_op = optimizer().minimize(loss, global_step=step)
        session.run(v1.global_variables_initializer())
        for _ in range(steps):
            session.run(train_op)
        v1.train.Saver().save(session, str(folder / "model.ckpt"), global_step=step)
        return {variable.op.name: session.run(variable) for variable in v1.global_variables()}


def test_continues_a_checkpoint_of_a_v1_program(tmp_path: Path) -> None:
    def full_batch(params: dict[str, Any]) -> Any:
        return tf.data.Dataset.from_tensors(({"x": programs.X}, programs.Y)).repeat()

    write_with_a_v1_saver(tmp_path / "a", momentum, 5)
    estimator = make_estimator(tmp_path / "a", make_model_fn(momentum))
    estimator.train(full_batch, max_steps=12)
    for name, value in write_with_a_v1_saver(tmp_path / "b", momentum, 12).items():
        np.testing.assert_allclose(estimator.get_variable_value(name), value, rtol=1e-4, atol=1e-6, err_msg=name)


def partitioned_loss(x: Any, labels: Any) -> tuple[Any, Any]:
    parts = v1.fixed_size_partitioner(2)
    with v1.variable_scope("linear", partitioner=parts):
        w = v1.get_variable("w", [3, 1], initializer=v1.ones_initializer())
    outputs = tf.matmul(x, tf.convert_to_tensor(w))[:, 0]
    return tf.reduce_mean((outputs - labels) ** 2), outputs


def partitioned_model_fn(features: Any, labels: Any, mode: str) -> TPUEstimatorSpec:
    if mode == ModeKeys.PREDICT:
        return TPUEstimatorSpec(mode, predictions={"outputs": partitioned_loss(features["x"], 0.0)[1]})
    loss, _ = partitioned_loss(features["x"], labels)
    train_op = CrossShardOptimizer(momentum()).minimize(loss, global_step=v1.train.get_global_step())
    return TPUEstimatorSpec(mode, loss=loss, train_op=train_op)


def test_continues_a_checkpoint_with_partitioned_variables(tmp_path: Path) -> None:
    folder = tmp_path / "original"
    folder.mkdir()
    found = []
    with tf.Graph().as_default(), v1.Session() as session:
        step = v1.train.get_or_create_global_step()
        loss, _ = partitioned_loss(tf.constant(programs.X), programs.Y)
        train_op = momentum().minimize(loss, global_step=step)
        session.run(v1.global_variables_initializer())
        saver = v1.train.Saver(sharded=True)
        for _ in range(4):
            session.run(train_op)
            found.append(np.concatenate(session.run(v1.trainable_variables())))
            if len(found) == 2:
                saver.save(session, str(folder / "model.ckpt"), global_step=step)
    assert tf.train.load_checkpoint(str(folder)).get_variable_to_shape_map() == {
        **{"linear/w": [3, 1], "linear/w/Momentum": [3, 1], "global_step": []}
    }

    def full_batch(params: dict[str, Any]) -> Any:
        return tf.data.Dataset.from_tensors(({"x": programs.X}, programs.Y)).repeat()

    def whole(estimator: Any) -> Any:
        return np.concatenate([estimator.get_variable_value(f"linear/w/part_{part}") for part in (0, 1)])

    rows = make_estimator(folder, partitioned_model_fn).predict(finite_input_fn(8))
    np.testing.assert_allclose([row["outputs"] for row in rows], (programs.X[:8] @ found[1])[:, 0], rtol=1e-5)
    warm = TPUEstimator(
        partitioned_model_fn,
        str(tmp_path / "warm"),
        use_tpu=False,
        predict_batch_size=8,
        warm_start_from=str(folder),
    )
    rows = warm.predict(finite_input_fn(8))
    np.testing.assert_allclose([row["outputs"] for row in rows], (programs.X[:8] @ found[1])[:, 0], rtol=1e-5)
    ours = make_estimator(folder, partitioned_model_fn).train(full_batch, max_steps=4)
    np.testing.assert_allclose(whole(ours), found[3], rtol=1e-4)
    with pytest.raises(CheckpointError, match=r"has the partitioned variable 'linear/w' as float32\(3, 1\)"):
        list(
            make_estimator(folder, wider_model_fn).predict(finite_input_fn(8), checkpoint_path=f"{folder}/model.ckpt-2")
        )


def wider_model_fn(features: Any, labels: Any, mode: str) -> TPUEstimatorSpec:
    with v1.variable_scope("linear", partitioner=v1.fixed_size_partitioner(2)):
        w = tf.convert_to_tensor(v1.get_variable("w", [4, 1]))
    return TPUEstimatorSpec(mode, predictions=features["x"][:, :1] * tf.reduce_sum(w))


def test_a_checkpoint_has_no_meta_file_to_rename(tmp_path: Path) -> None:
    path = make_estimator(tmp_path).train(train_input_fn, steps=1).latest_checkpoint()
    for ending in ("index", "data-00000-of-00001"):
        tf.io.gfile.rename(f"{path}.{ending}", tmp_path / f"best.{ending}")
    assert "linear/w" in tf.train.load_checkpoint(str(tmp_path / "best")).get_variable_to_shape_map()
    with pytest.raises(tf.errors.NotFoundError, match=r"\.meta"):
        tf.io.gfile.rename(f"{path}.meta", tmp_path / "best.meta")


def test_a_v1_program_restores_our_checkpoint(tmp_path: Path) -> None:
    estimator = make_estimator(tmp_path, make_model_fn(momentum))
    estimator.train(train_input_fn, steps=5)
    with tf.Graph().as_default(), v1.Session() as session:
        step = v1.train.get_or_create_global_step()
        loss = tf.reduce_mean((programs.linear(tf.constant(programs.X)) - programs.Y) ** 2)
        momentum().minimize(loss, global_step=step)
        v1.train.Saver().restore(session, tf.train.latest_checkpoint(str(tmp_path)))
        for variable in v1.global_variables():
            np.testing.assert_array_equal(session.run(variable), estimator.get_variable_value(variable.op.name))


def other_model_fn(name: str, shape: list[int]) -> Any:
    def model_fn(features: Any, labels: Any, mode: str) -> TPUEstimatorSpec:
        w = v1.get_variable(name, shape)
        loss = tf.reduce_mean(labels) * tf.reduce_sum(w)
        assert mode == ModeKeys.EVAL
        return TPUEstimatorSpec(mode, loss=loss)

    return model_fn


def test_rejects_a_checkpoint_of_another_model(tmp_path: Path) -> None:
    make_estimator(tmp_path).train(train_input_fn, steps=1)
    assert issubclass(CheckpointError, ValueError)
    assert issubclass(CheckpointError, TpudataError)
    with pytest.raises(CheckpointError, match=r"model\.ckpt-1 lacks the variable 'linear/weights'.*'linear/w'"):
        make_estimator(tmp_path, other_model_fn("linear/weights", [3, 1])).evaluate(finite_input_fn(8))
    message = r"'linear/w' as float32\(3, 1\), model_fn makes it as float32\(4, 1\).*another model_dir"
    with pytest.raises(CheckpointError, match=message):
        make_estimator(tmp_path, other_model_fn("linear/w", [4, 1])).evaluate(finite_input_fn(8))


@pytest.mark.parametrize("kind", ["index", "data-00000-of-00001"])
def test_rejects_a_damaged_checkpoint(kind: str, tmp_path: Path) -> None:
    make_estimator(tmp_path).train(train_input_fn, steps=1)
    path = tmp_path / f"model.ckpt-1.{kind}"
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(CheckpointError, match=r"model\.ckpt-1 cannot be read"):
        make_estimator(tmp_path).train(train_input_fn, max_steps=3)


def test_check_model_returns_the_metric_names(tmp_path: Path) -> None:
    estimator = make_estimator(tmp_path / "a")
    assert estimator.check_model(train_input_fn, ModeKeys.TRAIN) == ()
    names = estimator.check_model(finite_input_fn(16), ModeKeys.EVAL)
    assert not (tmp_path / "a").exists()
    assert set(names) == set(estimator.evaluate(finite_input_fn(16)))


@pytest.mark.parametrize("mode", [ModeKeys.TRAIN, ModeKeys.PREDICT])
def test_check_model_writes_nothing_and_finds_missing_variables(mode: str, tmp_path: Path) -> None:
    calls: list[str] = []
    make_estimator(tmp_path / "a").check_model(train_input_fn, mode)
    assert not (tmp_path / "a").exists()
    make_estimator(tmp_path / "a").train(train_input_fn, steps=1)
    before = {path: path.read_bytes() for path in (tmp_path / "a").iterdir()}
    estimator = make_estimator(tmp_path / "a", make_model_fn(calls=calls))
    estimator.check_model(finite_input_fn(16), mode)
    assert {path: path.read_bytes() for path in (tmp_path / "a").iterdir()} == before
    assert calls == [mode]
    if mode == ModeKeys.PREDICT:
        assert len(list(estimator.predict(finite_input_fn(16)))) == 16
        assert len(calls) == 1  # the model is not built again
    with pytest.raises(CheckpointError, match="lacks the variable 'other'"):
        make_estimator(tmp_path / "a", other_variable_too).check_model(finite_input_fn(16), mode)
    with pytest.raises(ValueError, match="check_model"):
        estimator.check_model(finite_input_fn(16), "test")


def other_variable_too(features: Any, labels: Any, mode: str) -> TPUEstimatorSpec:
    v1.get_variable("other", [2])
    return make_model_fn()(features, labels, mode, {})


def test_rejects_modes_that_disagree_on_a_variable(tmp_path: Path) -> None:
    def model_fn(features: Any, labels: Any, mode: str) -> TPUEstimatorSpec:
        if mode == ModeKeys.EVAL:
            return other_model_fn("linear/w", [7])(features, labels, mode)  # type: ignore[no-any-return]
        return make_model_fn()(features, labels, mode, {})

    estimator = make_estimator(tmp_path, model_fn)
    estimator.train(train_input_fn, steps=1)
    with pytest.raises(ValueError, match=r"got 'linear/w' as float32\(7,\), expected .* as in another mode"):
        estimator.evaluate(finite_input_fn(8))


def test_lists_and_reads_variables_by_name(tmp_path: Path) -> None:
    estimator = make_estimator(tmp_path)
    assert estimator.latest_checkpoint() is None
    with pytest.raises(ValueError, match="Train first"):
        estimator.get_variable_names()
    estimator.train(train_input_fn, steps=1)
    assert estimator.get_variable_names() == ["global_step", "linear/b", "linear/w"]
    with pytest.raises(ValueError, match="'linear/v'"):
        estimator.get_variable_value("linear/v")


def test_a_failed_save_names_the_last_checkpoint(tmp_path: Path) -> None:
    estimator = make_estimator(tmp_path / "model")
    estimator.train(train_input_fn, max_steps=2)
    # A folder in place of the next checkpoint's index simulates a disk that rejects it.
    (tmp_path / "model" / "model.ckpt-4.index").mkdir()
    with pytest.raises(
        StorageError,
        match=r"model\.ckpt-4 could not be written: .* Training continues from the last one, .*model\.ckpt-2",
    ):
        make_estimator(tmp_path / "model").train(train_input_fn, max_steps=4)
    (tmp_path / "model" / "model.ckpt-4.index").rmdir()
    again = make_estimator(tmp_path / "model")
    again.train(train_input_fn, max_steps=4)
    assert again.get_variable_value("global_step") == 4


@pytest.mark.parametrize("content", [b"", b"\x00\xffgarbage", b"model_checkpoint_path: model.ckpt-2", b"other: 3"])
def test_rejects_a_damaged_state_file(content: bytes, tmp_path: Path) -> None:
    make_estimator(tmp_path).train(train_input_fn, max_steps=2)
    (tmp_path / "checkpoint").write_bytes(content)
    message = r"/checkpoint is damaged .*model\.ckpt-100.*another model_dir"
    with pytest.raises(CheckpointError, match=message):
        make_estimator(tmp_path).train(train_input_fn, max_steps=4)
    with pytest.raises(CheckpointError, match=message):
        make_estimator(tmp_path).evaluate(finite_input_fn(8))
    assert (tmp_path / "checkpoint").read_bytes() == content
    assert (tmp_path / "model.ckpt-2.index").exists()


def test_rejects_a_state_file_that_names_a_missing_checkpoint(tmp_path: Path) -> None:
    make_estimator(tmp_path, save_checkpoints_steps=2).train(train_input_fn, max_steps=4)
    (tmp_path / "model.ckpt-4.index").unlink()
    with pytest.raises(
        CheckpointError, match=r"/checkpoint names .*model\.ckpt-4, which does not exist.*another model_dir"
    ):
        make_estimator(tmp_path).train(train_input_fn, max_steps=6)
    assert newest_step(tmp_path) is None
    (tmp_path / "checkpoint").write_text('model_checkpoint_path: "model.ckpt-0"')  # as the message says
    assert make_estimator(tmp_path).train(train_input_fn, max_steps=6).get_variable_value("global_step") == 6


def test_rejects_an_unreadable_state_file(tmp_path: Path) -> None:
    (tmp_path / "checkpoint").mkdir()  # simulates a disk, or a bucket, that fails
    with pytest.raises(StorageError, match=r"/checkpoint, which names the newest checkpoint, could not be read"):
        make_estimator(tmp_path).train(train_input_fn, max_steps=2)


def test_evaluation_reads_the_next_checkpoint_if_one_was_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This happens when one process evaluates while another trains."""
    make_estimator(tmp_path, keep_checkpoint_max=1).train(train_input_fn, max_steps=2)
    reader, open_ = make_estimator(tmp_path), Checkpoint.open
    trained: list[str] = []

    def late(prefix: str) -> Any:
        if not trained:
            trained.append(prefix)
            make_estimator(tmp_path, keep_checkpoint_max=1).train(train_input_fn, max_steps=4)
        return open_(prefix)

    monkeypatch.setattr(Checkpoint, "open", late)
    assert reader.evaluate(finite_input_fn(8))["global_step"] == 4


def test_training_continues_if_old_checkpoints_were_deleted(tmp_path: Path) -> None:
    make_estimator(tmp_path, keep_checkpoint_max=2).train(train_input_fn, max_steps=2)
    for path in tmp_path.glob("model.ckpt-0.*"):
        path.unlink()
    make_estimator(tmp_path, keep_checkpoint_max=2).train(train_input_fn, max_steps=4)
    assert sorted(path.stem for path in tmp_path.glob("model.ckpt-*.index")) == ["model.ckpt-2", "model.ckpt-4"]
    assert not list(tmp_path.glob("checkpoint.*"))


def test_get_variable_value_rejects_a_damaged_checkpoint(tmp_path: Path) -> None:
    estimator = make_estimator(tmp_path).train(train_input_fn, max_steps=2)
    (tmp_path / "model.ckpt-2.data-00000-of-00001").write_bytes(bytes(500))
    with pytest.raises(CheckpointError, match=r"model\.ckpt-2 cannot be read"):
        estimator.get_variable_value("linear/w")


@pytest.mark.parametrize("what", ["train", "evaluate"])
def test_reports_summaries_that_cannot_be_written(what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if what == "evaluate":
        (tmp_path / "eval").write_text("a file where the folder should be")
        call = functools.partial(make_estimator(tmp_path).evaluate, finite_input_fn(8))
    else:

        def full(serialized: bytes, step: int) -> Any:
            raise tf.errors.ResourceExhaustedError(None, None, f"events.{step}; No space left on device")

        monkeypatch.setattr(tf.summary.experimental, "write_raw_pb", full)
        call = functools.partial(make_estimator(tmp_path, save_summary_steps=1).train, train_input_fn, max_steps=4)
    with pytest.raises(StorageError, match=f"the summaries in {tmp_path}.* could not be written: .*[Nn]o"):
        call()


def test_keeps_one_checkpoint_per_hour_across_trainings(tmp_path: Path) -> None:
    """As with v1's Saver, file times are the clock."""
    estimator = make_estimator(tmp_path, keep_checkpoint_max=1, keep_checkpoint_every_n_hours=1)
    estimator.train(train_input_fn, steps=1)
    assert programs.saved_steps(tmp_path) == [1]
    later = time.time() + 2 * 3600
    os.utime(tmp_path / "model.ckpt-1.index", (later, later))
    estimator.train(train_input_fn, steps=1)
    assert programs.saved_steps(tmp_path) == [1, 2]
    estimator.train(train_input_fn, steps=1)
    assert programs.saved_steps(tmp_path) == [1, 3]


def test_keeps_one_checkpoint_per_hour_in_one_training(tmp_path: Path) -> None:
    hours, start = {1: 1.5, 2: 1.7, 3: 2.5, 4: 2.9}, time.time()

    class Clock(v1.train.CheckpointSaverListener):  # type: ignore[misc]  # TensorFlow is untyped
        """Sets the file times of checkpoints as if steps took hours."""

        def after_save(self, session: Any, global_step_value: int) -> None:
            del session
            then = start + 3600 * hours.get(global_step_value, 0)
            os.utime(tmp_path / f"model.ckpt-{global_step_value}.index", (then, then))

    estimator = make_estimator(
        tmp_path, save_checkpoints_steps=1, keep_checkpoint_max=1, keep_checkpoint_every_n_hours=1
    )
    estimator.train(train_input_fn, steps=5, saving_listeners=[Clock()])
    assert programs.saved_steps(tmp_path) == [1, 3, 5]

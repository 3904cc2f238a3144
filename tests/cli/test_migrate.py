import stat
import subprocess
from pathlib import Path

import pytest

from tests.helpers.forked import run
from tpudata.cli import main

OLD = """import tensorflow as tf

config = tf.contrib.tpu.TPUConfig(8)
hparams = tf.contrib.training.HParams()
"""
NEW = """import tensorflow.compat.v1 as tf
from tpudata import estimator as tpudata_estimator

config = tpudata_estimator.tpu.TPUConfig(8)
hparams = tf.contrib.training.HParams()
"""


def test_rewrites_in_place_and_lists_remaining_work(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, link = tmp_path / "main.py", tmp_path / "link.py"
    path.write_text(OLD)
    path.chmod(0o755)
    link.symlink_to(path)
    assert main(["migrate", str(link)]) == 1
    assert path.read_text() == NEW
    assert link.is_symlink()
    assert stat.S_IMODE(path.stat().st_mode) == 0o755
    out, err = capsys.readouterr()
    assert err == f"{link}: 2 places rewritten, 1 left to do\n"
    fix = "Use a dict, or your own dataclass."
    assert out == f"{link}:5: tf.contrib.training.HParams has no counterpart. {fix}\n"
    assert sorted(tmp_path.iterdir()) == [link, path]


def test_diff_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "main.py"
    path.write_text(OLD)
    assert main(["migrate", str(path), "--diff"]) == 1
    assert path.read_text() == OLD
    out = capsys.readouterr().out
    assert "-import tensorflow as tf\n+import tensorflow.compat.v1 as tf\n" in out
    assert out.splitlines()[-1].startswith(f"{path}:4: tf.contrib.training.HParams")
    # The output is a patch.
    patch = out[: out.index(f"{path}:4")]
    done = subprocess.run(["patch", str(path)], input=patch, capture_output=True, text=True, check=False)
    assert (done.returncode, path.read_text()) == (0, NEW), done.stderr


def test_keeps_line_endings_and_leaves_migrated_programs_alone(tmp_path: Path) -> None:
    path = tmp_path / "main.py"
    path.write_bytes(b"import tensorflow as tf\r\nx = tf.placeholder(tf.float32)\r\n")
    assert main(["migrate", str(path)]) == 0
    new = b"import tensorflow.compat.v1 as tf\r\ntf.disable_v2_behavior()\r\nx = tf.placeholder(tf.float32)\r\n"
    assert path.read_bytes() == new
    before = path.stat().st_mtime_ns
    assert main(["migrate", str(path)]) == 0
    assert path.stat().st_mtime_ns == before


def test_keeps_a_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "main.py"
    path.write_bytes(b"\xef\xbb\xbfimport tensorflow as tf\nx = tf.placeholder(tf.float32)\n")
    assert main(["migrate", str(path)]) == 0
    assert path.read_bytes() == (
        b"\xef\xbb\xbfimport tensorflow.compat.v1 as tf\ntf.disable_v2_behavior()\nx = tf.placeholder(tf.float32)\n"
    )


def test_rejects_a_notebook(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "main.ipynb"
    path.write_text('{"cells": [{"source": ["import tensorflow as tf\\n"], "execution_count": null}]}')
    assert main(["migrate", str(path)]) == 1
    assert "jupyter nbconvert --to script" in capsys.readouterr().err


def test_a_bad_file_stops_all_writes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good, bad = tmp_path / "good.py", tmp_path / "bad.py"
    good.write_text(OLD)
    for content, message in (
        (b"print 'x'\n", "bad.py:1: not a program in Python 3"),
        (b"x = '\xff'\n", "bad.py: not text in UTF-8 (got byte 0xff at 5). Convert it."),
    ):
        bad.write_bytes(content)
        assert main(["migrate", str(good), str(bad)]) == 1
        assert message in capsys.readouterr().err
    bad.unlink()
    assert main(["migrate", str(good), str(bad)]) == 1
    assert "bad.py: cannot be read: No such file or directory" in capsys.readouterr().err
    assert good.read_text() == OLD


# A TensorFlow 1 program in the style of tensorflow/tpu's; only the command changes it.
PROGRAM = """
import sys
import numpy as np
import tensorflow as tf
from tensorflow.contrib import summary
from tensorflow.contrib.tpu.python.tpu import tpu_config, tpu_estimator
from tensorflow.python.estimator import estimator

def host_call_fn(gs, loss):
    gs = gs[0]
    with summary.create_file_writer(sys.argv[1]).as_default():
        with summary.record_summaries_every_n_global_steps(2, global_step=gs):
            summary.scalar("host_loss", loss[0], step=gs)
    return summary.all_summary_ops()

def model_fn(features, labels, mode, params):
    net = tf.contrib.layers.layer_norm(features, begin_norm_axis=-1, begin_params_axis=-1, scope="norm")
    w = tf.get_variable("w", [3, 2], initializer=tf.contrib.layers.xavier_initializer())
    loss = tf.losses.sparse_softmax_cross_entropy(labels, tf.matmul(net, w))
    optimizer = tf.train.AdamOptimizer(0.01)
    if params["use_tpu"]:
        optimizer = tf.contrib.tpu.CrossShardOptimizer(optimizer)
    gs = tf.train.get_global_step()
    return tpu_estimator.TPUEstimatorSpec(
        mode=mode, loss=loss, train_op=optimizer.minimize(loss, global_step=gs),
        host_call=(host_call_fn, [tf.reshape(gs, [1]), tf.reshape(loss, [1])]))

def input_fn(params):
    random = np.random.RandomState(0)
    data = tf.data.Dataset.from_tensor_slices(
        (random.rand(64, 3).astype(np.float32), random.randint(0, 2, 64).astype(np.int32))).repeat()
    return data.apply(tf.contrib.data.batch_and_drop_remainder(params["batch_size"]))

config = tpu_config.RunConfig(
    model_dir=sys.argv[1], save_checkpoints_steps=4,
    session_config=tf.ConfigProto(allow_soft_placement=True),
    tpu_config=tpu_config.TPUConfig(iterations_per_loop=100, num_shards=8,
        per_host_input_for_training=tpu_config.InputPipelineConfig.PER_HOST_V2))
est = tpu_estimator.TPUEstimator(model_fn, use_tpu=False, config=config, train_batch_size=16)
est.train(input_fn, max_steps=10)
print(estimator._load_global_step_from_checkpoint_dir(sys.argv[1]), sorted(est.get_variable_names())[-3:])
"""


# In the style of BERT: one file trains, and another holds the model's helpers, without names that only TensorFlow 1 has.
HELPER = """
import tensorflow as tf

def dropout(x, share):
    return tf.nn.dropout(x, 1.0 - share)

def width(x):
    return x.shape[1]
"""
TRAINING = """
import sys
import numpy as np
import tensorflow as tf
from tensorflow.gfile import Exists
from tensorflow import gfile
import helper

def model_fn(features, labels, mode, params):
    kept = helper.dropout(features, 0.1)
    w = tf.get_variable("w", [helper.width(features), 2], regularizer=tf.contrib.layers.l2_regularizer(0.5, scope="r"))
    logits = tf.matmul(tf.contrib.layers.flatten(kept, scope="flat"), w)
    share = tf.reduce_mean(tf.to_float(tf.not_equal(kept, 0)))
    noise = tf.contrib.stateless.stateless_random_uniform([1], seed=[1, 2])
    predictions = {"share": tf.fill([tf.shape(features)[0]], share) + 0 * noise}
    if mode == tf.estimator.ModeKeys.PREDICT:
        return tf.contrib.tpu.TPUEstimatorSpec(mode, predictions=predictions)
    loss = tf.losses.sparse_softmax_cross_entropy(labels, logits) + tf.losses.get_regularization_loss()
    train_op = tf.train.AdamOptimizer(0.01).minimize(loss, global_step=tf.train.get_global_step())
    return tf.contrib.tpu.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)

def input_fn(params):
    data = tf.data.Dataset.from_tensor_slices((np.ones([64, 1000], np.float32), np.zeros([64], np.int32)))
    return data.batch(params["batch_size"], drop_remainder=True)

def main(_):
    folder = sys.argv[1]
    estimator = tf.contrib.tpu.TPUEstimator(
        model_fn, use_tpu=False, config=tf.contrib.tpu.RunConfig(model_dir=folder), train_batch_size=32, predict_batch_size=32)
    estimator.train(input_fn, max_steps=2)
    print(round(float(next(iter(estimator.predict(input_fn)))["share"]), 1))
    print(tf.contrib.framework.load_checkpoint(folder).get_tensor("w").shape, Exists(folder), gfile.IsDirectory(folder))
    with tf.Graph().as_default():
        tf.summary.FileWriter(folder + "/own").close()

if __name__ == "__main__":
    tf.app.run()
"""
# In the style of programs before estimators.
SESSIONS = """
import numpy as np
import tensorflow as tf

tf.set_random_seed(42)

def init_weights(shape):
    return tf.Variable(tf.random_normal(shape, stddev=0.1))

def main():
    random = np.random.RandomState(0)
    data = random.rand(60, 4)
    target = np.eye(2)[(data[:, 0] > 0.5).astype(int)]
    x = tf.placeholder("float", shape=[None, 4])
    y = tf.placeholder("float", shape=[None, 2])
    net = tf.matmul(tf.nn.sigmoid(tf.matmul(x, init_weights((4, 16)))), init_weights((16, 2)))
    cost = tf.reduce_mean(tf.nn.softmax_cross_entropy_with_logits(labels=y, logits=tf.nn.dropout(net, 1.0)))
    updates = tf.train.GradientDescentOptimizer(0.5).minimize(cost)
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        for _ in range(300):
            sess.run(updates, feed_dict={x: data, y: target})
        found = sess.run(tf.argmax(net, axis=1), feed_dict={x: data})
    print(np.mean(found == target.argmax(1)) > 0.8)

if __name__ == "__main__":
    main()
"""


def test_a_migrated_program_of_two_files_runs_as_tensorflow_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = [tmp_path / "main.py", tmp_path / "helper.py"]
    for path, text in zip(paths, (TRAINING, HELPER), strict=True):
        path.write_text(text)
    assert main(["migrate", *map(str, paths)]) == 0
    assert ", 0 left to do" in capsys.readouterr().err
    done = run(str(paths[0]), str(tmp_path / "model"))
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-2:] == ["0.9", "(1000, 2) True True"]


def test_a_migrated_session_program_runs(tmp_path: Path) -> None:
    path = tmp_path / "main.py"
    path.write_text(SESSIONS)
    assert main(["migrate", str(path)]) == 0
    done = run(str(path))
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr


def test_a_migrated_estimator_program_runs(tmp_path: Path) -> None:
    path = tmp_path / "main.py"
    path.write_text(PROGRAM)
    assert main(["migrate", str(path)]) == 0
    done = run(str(path), str(tmp_path / "model"))
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "10 ['w', 'w/Adam', 'w/Adam_1']"
    steps = sorted(int(item.name.split("-")[1].split(".")[0]) for item in (tmp_path / "model").glob("*.index"))
    assert steps == [0, 4, 8, 10]

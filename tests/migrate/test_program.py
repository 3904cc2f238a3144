"""Programs in the styles of TensorFlow 1, before and after.

One test reads the table of new names, of which a program uses only some.
"""

import re
import textwrap
from pathlib import Path
from types import ModuleType

import pytest
import tensorflow as tf

from tests.migrate.command import CommandResult, migrate, run_command
from tpudata import estimator as tpudata_estimator
from tpudata.migrate import names


def migrated(before: str) -> CommandResult:
    return migrate(textwrap.dedent(before))


def check(before: str, after: str, *notes: str) -> None:
    found = migrated(before)
    lines = found.text.splitlines(), textwrap.dedent(before).splitlines()
    for note in found.notes:
        new, old = lines[0][note.new_line - 1], lines[1][note.line - 1]
        assert new.split("(")[0].split(".")[-1] == old.split("(")[0].split(".")[-1]
    assert found.text == textwrap.dedent(after)
    assert [note.text for note in found.notes] == [*notes]
    compile(found.text, "after.py", "exec")
    again = migrate(found.text)
    assert again.text == found.text


def test_rewrites_a_contrib_tpu_program() -> None:
    check(
        """\
        import os

        import tensorflow as tf

        FLAGS = tf.flags.FLAGS

        def main():
            resolver = tf.contrib.cluster_resolver.TPUClusterResolver(FLAGS.tpu, zone=FLAGS.zone)
            config = tf.contrib.tpu.RunConfig(
                cluster=resolver,
                tpu_config=tf.contrib.tpu.TPUConfig(per_host_input_for_training=tf.contrib.tpu.InputPipelineConfig.PER_HOST_V2),
            )
            if mode == tf.estimator.ModeKeys.TRAIN:
                optimizer = tf.contrib.tpu.CrossShardOptimizer(optimizer)
            tf.logging.info("done")
        """,
        """\
        import os

        import tensorflow.compat.v1 as tf
        from tpudata import estimator as tpudata_estimator

        FLAGS = tf.flags.FLAGS

        def main():
            resolver = tf.distribute.cluster_resolver.TPUClusterResolver(FLAGS.tpu, zone=FLAGS.zone)
            config = tpudata_estimator.tpu.RunConfig(
                cluster=resolver,
                tpu_config=tpudata_estimator.tpu.TPUConfig(per_host_input_for_training=tpudata_estimator.tpu.InputPipelineConfig.PER_HOST_V2),
            )
            if mode == tpudata_estimator.ModeKeys.TRAIN:
                optimizer = tpudata_estimator.tpu.CrossShardOptimizer(optimizer)
            tf.logging.info("done")
        """,
    )


def test_rewrites_a_program_upgraded_by_tf_upgrade_v2() -> None:
    check(
        """\
        import tensorflow as tf
        from tensorflow.compat.v1 import estimator as tf_estimator

        tf.compat.v1.disable_v2_behavior()
        if True:
            tf.compat.v1.disable_eager_execution()
        tf.compat.v1.disable_control_flow_v2()
        spec = tf_estimator.tpu.TPUEstimatorSpec(tf_estimator.ModeKeys.EVAL)
        other = tf.compat.v1.estimator.EstimatorSpec("eval")
        receiver = tf_estimator.export.ServingInputReceiver(tf.compat.v1.placeholder(tf.float32), {})
        """,
        """\
        import tensorflow as tf
        from tpudata import estimator as tpudata_estimator

        pass  # tpudata.estimator works with TensorFlow 2's behaviour
        if True:
            pass  # tpudata.estimator works with TensorFlow 2's behaviour
        pass  # tpudata.estimator works with TensorFlow 2's behaviour
        spec = tpudata_estimator.tpu.TPUEstimatorSpec(tpudata_estimator.ModeKeys.EVAL)
        other = tpudata_estimator.EstimatorSpec("eval")
        receiver = tpudata_estimator.export.ServingInputReceiver(tf.compat.v1.placeholder(tf.float32), {})
        """,
        "tf.placeholder needs a graph, and no estimator gives it one here: the program runs eagerly. Put it, and what it runs,"
        " below `with tf.Graph().as_default():`.",
    )


def test_rewrites_names_imported_from_inner_modules() -> None:
    check(
        """\
        # A comment.
        from tensorflow.contrib.tpu.python.tpu import (
            tpu_config,
            tpu_estimator,
        )
        from tensorflow.contrib.cluster_resolver import TPUClusterResolver
        from tensorflow.contrib.training.python.training import evaluation
        from tensorflow.python.estimator import estimator
        import tensorflow as tf

        step = estimator._load_global_step_from_checkpoint_dir("d")
        config = tpu_config.TPUConfig(8)
        est = tpu_estimator.TPUEstimator(None, config=TPUClusterResolver("x"))
        for ckpt in evaluation.checkpoints_iterator("d"):
            tf.gfile.Exists(ckpt)
        """,
        """\
        # A comment.
        from tpudata import estimator as tpudata_estimator
        import tensorflow.compat.v1 as tf

        step = tpudata_estimator._load_global_step_from_checkpoint_dir("d")
        config = tpudata_estimator.tpu.TPUConfig(8)
        est = tpudata_estimator.tpu.TPUEstimator(None, config=tf.distribute.cluster_resolver.TPUClusterResolver("x"))
        for ckpt in tf.train.checkpoints_iterator("d"):
            tf.gfile.Exists(ckpt)
        """,
    )


def test_rewrites_summaries_of_a_host_call() -> None:
    check(
        """\
        import tensorflow as tf
        from tensorflow.contrib import summary

        def host_call_fn(gs, loss):
            gs = gs[0]
            with summary.create_file_writer("d", max_queue=100).as_default():
                with summary.record_summaries_every_n_global_steps(10, global_step=gs):
                    with tf.contrib.summary.always_record_summaries():
                        summary.scalar("loss", tensor=loss[0], step=gs)
                    summary.image("image", loss, step=gs, max_images=3)
                    summary.scalar("other", loss[0])
            return summary.all_summary_ops()
        """,
        """\
        import tensorflow.compat.v1 as tf

        def host_call_fn(gs, loss):
            gs = gs[0]
            with tf.compat.v2.summary.create_file_writer("d", max_queue=100).as_default():
                with tf.compat.v2.summary.record_if(tf.equal(gs % 10, 0)):
                    with tf.compat.v2.summary.record_if(True):
                        tf.compat.v2.summary.scalar("loss", data=loss[0], step=gs)
                    tf.compat.v2.summary.image("image", loss, step=gs, max_outputs=3)
                    tf.compat.v2.summary.scalar("other", loss[0])
            return tf.summary.all_v2_summary_ops()
        """,
        "summary.scalar needs a step today. Pass step=.",
    )


def test_rewrites_contrib_datasets() -> None:
    check(
        """\
        import tensorflow as tf

        def input_fn(params):
            data = tf.data.TFRecordDataset("f").repeat()
            data = data.apply(tf.contrib.data.map_and_batch(lambda record: record, batch_size=params["batch_size"]))
            data = data.apply(
                tf.contrib.data.batch_and_drop_remainder(params["batch_size"])).prefetch(1)
            return data.apply(tf.contrib.data.shuffle_and_repeat(10))
        """,
        """\
        import tensorflow.compat.v1 as tf

        def input_fn(params):
            data = tf.data.TFRecordDataset("f").repeat()
            data = data.apply(tf.data.experimental.map_and_batch(lambda record: record, batch_size=params["batch_size"]))
            data = data.batch(params["batch_size"], drop_remainder=True).prefetch(1)
            return data.apply(tf.data.experimental.shuffle_and_repeat(10))
        """,
    )


def test_rewrites_the_contrib_calls_of_bert() -> None:
    check(
        """\
        # coding=utf-8 \u00e9
        import collections, six
        import tensorflow as tf

        def layer_norm(x, name=None):
            \"\"\"R\u00e9sum\u00e9.\"\"\"
            return tf.contrib.layers.layer_norm(inputs=x, begin_norm_axis=-1, begin_params_axis=-1, scope=name)

        width = x.shape[2].value
        height = x.get_shape()[1].value
        is_per_host = tf.contrib.tpu.InputPipelineConfig.PER_HOST_V2
        """,
        """\
        # coding=utf-8 \u00e9
        import collections, six
        import tensorflow.compat.v1 as tf
        from tpudata import estimator as tpudata_estimator

        def layer_norm(x, name=None):
            \"\"\"R\u00e9sum\u00e9.\"\"\"
            return tpudata_estimator.contrib.layer_norm(inputs=x, begin_norm_axis=-1, begin_params_axis=-1, scope=name)

        width = x.shape[2].value
        height = x.get_shape()[1].value
        is_per_host = tpudata_estimator.tpu.InputPipelineConfig.PER_HOST_V2
        """,
        "dimensions are ints today. Remove .value, or call tf.disable_v2_tensorshape() after the imports.",
        "dimensions are ints today. Remove .value, or call tf.disable_v2_tensorshape() after the imports.",
    )


def test_lists_names_without_a_counterpart() -> None:
    found = migrated(
        """\
        import tensorflow as tf
        from tensorflow.contrib.rnn import LSTMCell
        from tensorflow.contrib.tpu.python.ops import tpu_ops

        hparams = tf.contrib.training.HParams(a=1)
        cell = LSTMCell(3)
        x = tf.contrib.layers.conv2d(y, 3, 3)
        y = tf.estimator.DNNClassifier([1])
        resolver = tf.contrib.cluster_resolver.TPUClusterResolver(tpu='')
        resolver = tf.contrib.cluster_resolver.TPUClusterResolver(name if name else '')
        resolver = tf.contrib.cluster_resolver.TPUClusterResolver(tpu=name or '', zone='')
        resolver = tf.contrib.cluster_resolver.TPUClusterResolver(name or 'local', '')
        """
    )
    assert [(note.line, note.text.split(". ")[0]) for note in found.notes] == [
        (5, "tf.contrib.training.HParams has no counterpart"),
        (6, "tf.contrib.rnn.LSTMCell has no counterpart"),
        (7, "tf.contrib.layers.conv2d has no counterpart"),
        (8, "tf.estimator.DNNClassifier has no counterpart"),
        (9, "TPUClusterResolver('') looks for a TPU named ''"),
        (10, "TPUClusterResolver('') looks for a TPU named ''"),
        (11, "TPUClusterResolver('') looks for a TPU named ''"),
    ]


def test_rewrites_the_inner_modules_of_contrib_tpu() -> None:
    found = migrated(
        """\
        import tensorflow as tf
        from tensorflow.contrib.tpu.python.ops import tpu_ops
        from tensorflow.contrib.tpu.python.tpu import bfloat16, tpu_function

        with bfloat16.bfloat16_scope():
            y = tpu_ops.cross_replica_sum(x) / tpu_function.get_tpu_context().number_of_shards
        """
    )
    assert found.text == textwrap.dedent(
        """\
        import tensorflow.compat.v1 as tf

        with tf.tpu.bfloat16_scope():
            y = tf.tpu.cross_replica_sum(x) / tpu_function.get_tpu_context().number_of_shards
        """
    )
    (note,) = found.notes
    assert note.line == 6
    assert note.text.startswith(
        "tf.contrib.tpu.python.tpu.tpu_function.get_tpu_context has no counterpart. Use params["
    )


@pytest.mark.parametrize(
    "text",
    [
        "import numpy as np\nx = np.contrib.tpu\n",
        "",
        "import tensorflow as tf\nmodel = tf.keras.Sequential()\n",
        "import tensorflow.compat.v1 as tf\ntf.get_variable('a')\n",
        "from tpudata import estimator\nestimator.TPUEstimator\r\n",
    ],
)
def test_leaves_other_programs_unchanged(text: str) -> None:
    assert migrate(text) == CommandResult(text, 0, ())


@pytest.mark.parametrize("text", ["print 'old'\n", "def f(:\n", "x = \0\n"])
def test_rejects_programs_that_are_not_python_3(tmp_path: Path, text: str) -> None:
    path = tmp_path / "p.py"
    path.write_text(text)
    code, _, errors = run_command([str(path)])
    assert code == 1
    assert re.search(r"/p\.py(:1)?: not a program in Python 3 ", errors)


def test_every_new_name_exists() -> None:
    """Look up each name that a migrated program gets in TensorFlow or tpudata."""
    roots: dict[str, ModuleType] = {
        "est": tpudata_estimator,
        "v1": tf.compat.v1,
        "tf": tf,
        "tf2": tf.compat.v2,
    }
    for target in names.RENAMED.values():
        root, *path = target.replace("{", "").replace("}", "").split(".")
        if root == "slim":  # It is a third-party package.
            continue
        place: object = roots[root]
        if path[0] == "layers":  # They need tf_keras and its switch.
            continue
        for name in path:
            assert hasattr(place, name), target
            place = getattr(place, name)
    assert set(names.TPU_NAMES) == set(tpudata_estimator.tpu.__all__)
    assert set(tpudata_estimator.export.__all__) == set(names.EXPORT_NAMES)


def test_rewrites_names_inside_rewritten_calls() -> None:
    check(
        """\
        import tensorflow.compat.v1 as tf

        tf.contrib.summary.record_summaries_every_n_global_steps(tf.contrib.framework.get_global_step() + 1)
        data = data.apply(tf.contrib.data.batch_and_drop_remainder(tf.contrib.framework.get_global_step()))
        """,
        """\
        import tensorflow.compat.v1 as tf

        tf.compat.v2.summary.record_if(tf.equal(tf.train.get_or_create_global_step() % (tf.train.get_global_step() + 1), 0))
        data = data.batch(tf.train.get_global_step(), drop_remainder=True)
        """,
    )


def test_notes_star_imports_and_keeps_them() -> None:
    check(
        """\
        from tensorflow.contrib.tpu import *
        from os.path import *
        """,
        """\
        from tensorflow.contrib.tpu import *
        from os.path import *
        """,
        "names that come from tensorflow.contrib.tpu by * are not seen. Import them by name, and migrate again.",
    )


def test_notes_a_variable_that_shadows_an_import() -> None:
    check(
        """\
        from tensorflow.compat.v1 import estimator

        def run(estimator):
            return estimator.EstimatorSpec
        """,
        """\
        from tpudata import estimator as tpudata_estimator

        def run(estimator):
            return tpudata_estimator.EstimatorSpec
        """,
        "estimator is an import and a variable here: its uses were taken for the import's. Check them.",
    )


def test_follows_a_part_that_is_assigned_from_an_assigned_part() -> None:
    found = migrated(
        """\
        import tensorflow as tf
        contrib = tf.contrib

        def run(x):
            layers = contrib.layers
            return layers.conv2d(x, 3, 3, weights_initializer=layers.xavier_initializer())
        """
    )
    assert "weights_initializer=tf.glorot_uniform_initializer())" in found.text
    assert [(note.line, note.text.split(". ")[0]) for note in found.notes] == [
        (2, "tf.contrib has no counterpart"),
        (5, "tf.contrib.layers has no counterpart"),
        (6, "tf.contrib.layers.conv2d has no counterpart"),
    ]


@pytest.mark.parametrize("argument", ["uniform=False", "False"])
def test_notes_arguments_that_the_new_initializer_lacks(argument: str) -> None:
    found = migrated(f"import tensorflow.compat.v1 as tf\nvalue = tf.contrib.layers.xavier_initializer({argument})\n")
    assert found.text.endswith(f"tf.glorot_uniform_initializer({argument})\n")
    assert [(note.line, note.new_line) for note in found.notes] == [(2, 2)]


def test_a_note_gives_the_line_before_and_after_migration() -> None:
    before = "import tensorflow as tf\ncell = tf.contrib.rnn.LSTMCell(3)\nspec = tf.contrib.tpu.TPUEstimatorSpec\n"
    found = migrated(before)
    assert [(note.line, note.new_line) for note in found.notes] == [(2, 3)]
    assert found.text.splitlines()[2] == before.splitlines()[1]

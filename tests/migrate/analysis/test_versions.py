"""Programs of several files: a file of TensorFlow 1 decides for the others."""

import pytest

from tests.migrate.command import migrate, migrate_files

# It has no name that only TensorFlow 1 has; there, 0.9 is the share to keep.
HELPER = "import tensorflow as tf\n\ndef f(x):\n    return tf.nn.dropout(x, 0.9)\n"
OLD, NEW = "import tensorflow as tf\n", "import tensorflow.compat.v1 as tf\n"


@pytest.mark.parametrize(
    "other",
    [
        "import tensorflow as tf\nx = tf.get_variable('x', [])\n",
        "import tensorflow as tf\nx = tf.reduce_sum([1], keep_dims=True)\n",
        "import tensorflow as tf\nx = tf.train.AdamOptimizer\n",
        "import tensorflow as tf\nx = tf.image.resize_bilinear\n",
        "import tensorflow as tf\nx = tf.contrib.layers.layer_norm\n",
        "from tensorflow.contrib import tpu\n",
        "from tensorflow.gfile import Exists\n",
    ],
)
def test_a_helper_file_follows_the_programs_release(other: str) -> None:
    found = migrate_files({"a/helper.py": HELPER, "main.py": other})
    assert found["a/helper.py"].text == HELPER.replace(OLD, NEW)
    assert found["a/helper.py"].notes == ()
    assert migrate_files({path: item.text for path, item in found.items()})["a/helper.py"].changes == 0


@pytest.mark.parametrize("line", ["m = tf.keras.Sequential()", "f = tf.function(f)", "t = tf.GradientTape()"])
def test_a_keras_or_eager_file_stays_unless_a_tensorflow_1_program_imports_it(line: str) -> None:
    helper, other = f"{HELPER}{line}\n", f"{OLD}x = tf.to_float(1)\n"
    alone = migrate_files({"helper.py": helper, "main.py": other})["helper.py"]
    assert (alone.text, [note.line for note in alone.notes]) == (helper, [4])
    # Its caller decides.
    for link in ("from a import helper\n", "from a.helper import f\n"):
        found = migrate_files({"a/helper.py": helper, "main.py": link + other})["a/helper.py"]
        assert (found.text, found.notes) == (helper.replace(OLD, NEW), ())


def test_notes_a_helper_file_left_behind_by_an_earlier_migration() -> None:
    found = migrate_files({"helper.py": HELPER, "main.py": NEW})["helper.py"]
    assert found.text == HELPER.replace(OLD, NEW)
    assert [note.line for note in found.notes] == [4]


@pytest.mark.parametrize(
    "helper",
    [
        "import tensorflow as tf\nx = tf.compat.v1.to_float(1)\n",
        "import tensorflow.compat.v2 as tf\nx = tf.nn.dropout(1, 0.1)\n",
        "import tensorflow as tf\nx = tf.nn.gelu(tf.nn.dropout(1, 0.1))\n",
        "import numpy as tf\nx = tf.nn.dropout(1, 0.1)\n",
    ],
)
def test_leaves_a_file_of_tensorflow_2_unchanged(helper: str) -> None:
    alone = migrate(helper)
    assert (alone.text, alone.notes) == (helper, ())


def test_a_tensorflow_2_file_stays_next_to_a_tensorflow_1_file() -> None:
    helper = "import tensorflow as tf\nx = tf.compat.v1.to_float(1)\n"
    found = migrate_files({"helper.py": helper, "main.py": "import tensorflow as tf\nx = tf.to_float(1)\n"})
    assert found["helper.py"].text == helper


def test_a_file_with_names_of_both_releases_stays_on_2_and_gets_a_note() -> None:
    found = migrate(f"{OLD}tf.random.set_seed(1)\ntf.logging.info(tf.nn.dropout(1, 0.1))\n")
    assert found.text == f"{OLD}tf.random.set_seed(1)\ntf.compat.v1.logging.info(tf.nn.dropout(1, 0.1))\n"
    assert [(note.line, "names that only TensorFlow 2 has" in note.text) for note in found.notes] == [(1, True)]


def test_notes_a_call_whose_release_is_unknown() -> None:
    found = migrate(HELPER)
    assert found.text == HELPER
    assert [(note.line, note.text.partition(" was")[0]) for note in found.notes] == [
        (4, "tf.nn.dropout's second argument")
    ]
    for arguments in ("keep_prob=0.9", "rate=0.1"):
        assert migrate(HELPER.replace("0.9", arguments)).notes == ()
    # tf.estimator was in TensorFlow 2 as well.
    found = migrate(HELPER + "tf.estimator.RunConfig()\n")
    assert "import tensorflow.compat.v1 as tf" in found.text
    assert len(found.notes) == 1
    resizes = f"{OLD}tf.estimator.RunConfig()\n%stf.image.resize(x, (8, 8))\ntf.compat.v2.image.resize(x, (8, 8))\n"
    assert [note.line for note in migrate(resizes % "").notes] == [3]
    assert migrate(resizes % "tf.to_float(1), ").notes == ()


def test_takes_names_of_the_other_release_from_its_module() -> None:
    old = migrate(f"{NEW}x = tf.to_float(tf.nn.gelu(1))\n")
    assert old.text == f"{NEW}x = tf.to_float(tf.compat.v2.nn.gelu(1))\n"
    new = migrate("import tensorflow as tf\nx = tf.to_float(tf.compat.v1.to_int32(1))\n")
    assert new.text == "import tensorflow as tf\nx = tf.compat.v1.to_float(tf.compat.v1.to_int32(1))\n"


@pytest.mark.parametrize(
    "guarded",
    [
        "if tf.__version__.startswith('1'):\n    tf.enable_eager_execution()\n",
        "NEW = int(tf.__version__[0]) > 1\nif not NEW:\n    tf.enable_eager_execution()\n",
        "log = tf.log if hasattr(tf, 'log') else tf.math.log\n",
        "try:\n    tf.enable_eager_execution()\nexcept AttributeError:\n    pass\n",
        "try:\n    from tensorflow.contrib import rnn\nexcept ImportError:\n    pass\n",
    ],
)
def test_guarded_names_do_not_decide_the_release(guarded: str) -> None:
    program = f"import tensorflow as tf\n{guarded}x = tf.nn.dropout(1, rate=0.1)\nopt = tf.optimizers.Adam()\n"
    found = migrate(program)
    assert (found.text, found.notes) == (program, ())
    # A file of TensorFlow 1 is rewritten as a whole.
    assert "\nimport tensorflow.compat.v1 as tf\n" in migrate(f"\n{OLD}{guarded}x = tf.to_float(1)\n").text


def test_a_guarded_import_keeps_its_place_before_new_ones() -> None:
    program = "try:\n    import tensorflow as tf\nexcept ImportError:\n    raise SystemExit(1)\n"
    found = migrate(f"{program}tf.estimator.Estimator(f)\nx = tf.optimizers.SGD()\n").text
    assert "    import tensorflow as tf\n    from tpudata import estimator as tpudata_estimator\nexcept" in found


@pytest.mark.parametrize(
    "name", ["train.experimental.enable_mixed_precision_graph_rewrite", "mixed_precision.experimental.FixedLossScale"]
)
def test_names_of_early_tensorflow_2_do_not_imply_tensorflow_1(name: str) -> None:
    program = f"import tensorflow as tf\nx = tf.{name}(tf.keras.Model())\n"
    assert migrate(program).text == program.replace("tf.", "tf.compat.v1.", 1)


def test_notes_names_that_keras_removed() -> None:
    found = migrate("import tensorflow as tf\ne = tf.keras.estimator.model_to_estimator(tf.keras.Model())\n")
    assert [(note.line, note.text.partition(" has")[0]) for note in found.notes] == [
        (2, "tf.keras.estimator.model_to_estimator")
    ]

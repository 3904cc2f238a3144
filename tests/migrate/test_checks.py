"""Places that a person has to check."""

import pytest

from tests.migrate.command import migrate, migrate_files

HEAD = "import tensorflow.compat.v1 as tf\n"


@pytest.mark.parametrize(
    "lines",
    [
        "h = x.shape[1].value",
        "shape = x.shape\nh = shape[1].value",
        "shape = x.get_shape().with_rank(3)\nd = shape[-1]\nh = d.value",
        "batch, h = x.get_shape()\nn = h.value",
        "sizes = [d.value for d in x.shape]",
        "for d in x.shape[1:]:\n    print(d.value)",
        "a, d = 1, x.shape[0]\nn = d.value",
        "if (d := x.shape[0]):\n    n = d.value",
    ],
)
def test_notes_the_value_of_a_dimension(lines: str) -> None:
    found = migrate(HEAD + lines + "\n")
    last = 1 + len(lines.splitlines())
    assert [(note.line, note.text[:19]) for note in found.notes] == [(last, "dimensions are ints")]


@pytest.mark.parametrize(
    "lines",
    [
        "shape = x.shape.as_list()\nh = shape[1].value",
        "v = feature.int64_list.value[0]",
        "v = x.shape.dims[1].value",
        "shape = x.shape\nv = other[1].value",
        "x.shape[1].value = 3",
    ],
)
def test_accepts_other_uses_of_value(lines: str) -> None:
    assert migrate(HEAD + lines + "\n").notes == ()


def test_accepts_dimension_values_in_programs_with_old_shapes() -> None:
    sessions = "import tensorflow as tf\nx = tf.placeholder(tf.float32, [3])\nprint(x.shape[0].value)\n"
    assert migrate(sessions).notes == ()
    estimator = "import tensorflow as tf\ntf.estimator.RunConfig()\n{}print(x.shape[0].value)\n"
    assert migrate(estimator.format("tf.disable_v2_tensorshape()\n")).notes == ()
    # The call is removed, since the estimator needs TensorFlow 2's behaviour.
    assert len(migrate(estimator.format("tf.disable_v2_behavior()\n")).notes) == 1


def test_notes_names_imported_through_another_module() -> None:
    helper = "import tensorflow as tf\nx = tf.to_float(1)\n"
    new = "import tensorflow.compat.v2 as tf\n"
    for lines, words in (
        (
            "from pkg.helper import *\ntf.to_float(1)\n",
            "`from pkg.helper import *` binds tf, so its uses here were not looked at",
        ),
        ("import tensorflow as tf\nfrom .new import *\ntf.to_float(1)\n", "`from .new import *` binds tf anew"),
        ("from other import *\ntf.to_float(1)\n", "`from other import *` may bind tf, so its"),
        ("import tensorflow as tf\nfrom other import *\ntf.to_float(1)\n", "`from other import *` may bind tf anew"),
        ("from helper import tf\ntf.to_float(1)\n", "helper imports tf, so its uses"),
    ):
        found = migrate_files({"main.py": lines, "helper.py": helper, "new.py": new})["main.py"]
        assert [note.text.startswith(words) for note in found.notes] == [True], found.notes
    for lines in (
        "from other import *\nimport tensorflow as tf\ntf.to_float(1)\n",
        "from math import *\nimport tensorflow as tf\ntf.to_float(1)\n",
        "import tensorflow as tf\nfrom plain import *\ntf.to_float(1)\n",
        # The same TensorFlow under the same name, before and after.
        "import tensorflow as tf\nfrom helper import *\ntf.to_float(1)\n",
    ):
        assert migrate_files({"main.py": lines, "plain.py": "x = 1\n", "helper.py": helper})["main.py"].notes == ()


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("from tensorflow.python.ops import rnn", "tensorflow.python.ops.rnn is private to TensorFlow"),
        ("import tensorflow.python.ops.rnn as rnn", "tensorflow.python.ops.rnn is private to TensorFlow"),
        (
            "from tensorflow.examples.tutorials.mnist import input_data",
            "tensorflow.examples.tutorials.mnist.input_data is gone",
        ),
    ],
)
def test_notes_imports_of_private_modules(line: str, words: str) -> None:
    found = migrate(f"{line}\n")
    assert found.text == f"{line}\n"
    assert [note.text.startswith(words) for note in found.notes] == [True]
    assert migrate("from tensorflow.python.estimator import estimator\n").notes == ()


def test_notes_the_needs_of_old_keras_once() -> None:
    files = {
        "a.py": "import tensorflow as tf\nx = tf.to_float(1)\ny = tf.layers.dense(x, 3)\nz = tf.layers.dense(y, 3)\n",
        "b.py": "import tensorflow as tf\ncell = tf.nn.rnn_cell.LSTMCell(3)\n",
    }
    found = migrate_files(files)
    assert [(note.line, note.text[-44:]) for note in found["a.py"].notes] == [
        (3, "Install tf_keras, and run with TF_USE_LEGACY_KERAS=1."[-44:])
    ]
    assert found["b.py"].notes == ()
    assert len(migrate(files["b.py"]).notes) == 1
    files["c.py"] = "import os\nos.environ['TF_USE_LEGACY_KERAS'] = '1'\n"
    assert not any(item.notes for item in migrate_files(files).values())


def test_notes_names_that_no_release_has() -> None:
    found = migrate("import tensorflow as tf\nx = tf.mul(tf.to_float(1), tf.nonsense)\n")
    assert [note.text for note in found.notes] == [
        "tf.mul has no counterpart. Use tf.multiply.",
        "tf.nonsense has no counterpart. Write it with what TensorFlow has today.",
    ]


@pytest.mark.parametrize(
    ("call", "moved"),
    [
        ("scalar('a', x, step=s)", ""),
        ("scalar('a', x, 'f', step=s)", "argument 3 was family"),
        ("histogram('a', x, 'f', s)", "argument 3 was family"),
        ("image('a', x, step=s)", ""),
        ("image('a', x, None, 3, step=s)", "argument 3 was bad_color"),
        ("audio('a', x, 16000, step=s)", ""),
        ("audio('a', x, 16000, 3, step=s)", "argument 4 was max_outputs"),
    ],
)
def test_notes_the_arguments_of_a_summary_that_have_moved(call: str, moved: str) -> None:
    notes = [note.text for note in migrate(f"import tensorflow as tf\ntf.contrib.summary.{call}\n").notes]
    assert [note for note in notes if "is step today" in note] == (
        [f"summary.{call.partition('(')[0]}: {moved} and is step today. Pass it and those after it by keyword."]
        if moved
        else []
    )

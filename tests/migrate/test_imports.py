"""Imports of TensorFlow and of its parts, before and after."""

import pytest

from tests.migrate.command import migrate

EST = "from tpudata import estimator as tpudata_estimator\n"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (
            "from tensorflow.gfile import Exists, MakeDirs as make\nExists(make)\n",
            "from tensorflow.compat.v1.gfile import Exists, MakeDirs as make\nExists(make)\n",
        ),
        (
            "from tensorflow import gfile, nn, keras\ngfile.Exists(nn.dropout(1, 0.9))\n",
            "from tensorflow.compat.v1 import gfile, nn\nfrom tensorflow import keras\ngfile.Exists(nn.dropout(1, 0.9))\n",
        ),
        (
            "import tensorflow.gfile as g\r\ng.Exists(1)\r\n",
            "import tensorflow.compat.v1.gfile as g\r\ng.Exists(1)\r\n",
        ),
        (
            "from tensorflow import estimator\rx = estimator.RunConfig\r",
            EST.replace("\n", "\r") + "x = tpudata_estimator.RunConfig\r",
        ),
        (
            "import os, tensorflow as tf\ntf.to_float(1)\n",
            "import os, tensorflow.compat.v1 as tf\ntf.to_float(1)\n",
        ),
        (
            "import tensorflow.compat.v2 as tf\nx = tf.compat.v1.estimator.tpu.RunConfig, tf.estimator.ModeKeys\n",
            f"import tensorflow.compat.v2 as tf\n{EST}x = tpudata_estimator.tpu.RunConfig, tpudata_estimator.ModeKeys\n",
        ),
        (
            "from tensorflow.compat import v2 as tf\nx = tf.estimator.ModeKeys, tf.nn.dropout(1, 0.1)\n",
            f"from tensorflow.compat import v2 as tf\n{EST}x = tpudata_estimator.ModeKeys, tf.nn.dropout(1, 0.1)\n",
        ),
        (
            "import tensorflow.compat.v1\nx = tensorflow.compat.v1.estimator.ModeKeys, tensorflow.nn.dropout(1, 0.1)\n",
            f"import tensorflow.compat.v1\n{EST}x = tpudata_estimator.ModeKeys, tensorflow.nn.dropout(1, 0.1)\n",
        ),
        (
            "import tensorflow.keras\nx = tensorflow.placeholder(tensorflow.float32)\n",
            "import tensorflow.compat.v1 as tensorflow\ntensorflow.disable_v2_behavior()\n"
            "x = tensorflow.placeholder(tensorflow.float32)\n",
        ),
        (
            "import tensorflow\nimport tensorflow.nn, tensorflow.keras\nx = tensorflow.to_float(1)\n",
            "import tensorflow.compat.v1 as tensorflow\nimport tensorflow.compat.v1 as tensorflow\nx = tensorflow.to_float(1)\n",
        ),
        (
            "import tensorflow as tf\nimport tensorflow\nx = tf.to_float(tensorflow.log(1))\n",
            "import tensorflow.compat.v1 as tf\nimport tensorflow.compat.v1 as tensorflow\nx = tf.to_float(tensorflow.log(1))\n",
        ),
        (
            "import tensorflow as tf\nimport tensorflow.keras\nx = tf.to_float(1)\n",
            "import tensorflow.compat.v1 as tf\nimport tensorflow.keras\nx = tf.to_float(1)\n",
        ),
        (
            "import tensorflow.contrib.tpu, os\nx = tensorflow.contrib.tpu.TPUConfig\n",
            f"import tensorflow.compat.v1 as tensorflow, os\n{EST}x = tpudata_estimator.tpu.TPUConfig\n",
        ),
        (
            "def f():\n    import tensorflow as tf\n    return tf.to_float(1)\n"
            "def g():\n    import tensorflow as tf\n    return tf.estimator.ModeKeys\n",
            f"def f():\n    import tensorflow.compat.v1 as tf\n    {EST}    return tf.to_float(1)\n"
            f"def g():\n    import tensorflow.compat.v1 as tf\n    {EST}    return tpudata_estimator.ModeKeys\n",
        ),
        (
            "import tensorflow as tf\nest = tf.estimator\nx = est.ModeKeys\n",
            f"import tensorflow.compat.v1 as tf\n{EST}est = tpudata_estimator\nx = tpudata_estimator.ModeKeys\n",
        ),
        (
            "from tensorflow import contrib\nx = contrib.layers.flatten(contrib.tpu.TPUEstimator)\n",
            f"{EST}x = tpudata_estimator.contrib.flatten(tpudata_estimator.tpu.TPUEstimator)\n",
        ),
        (
            "from tensorflow.compat.v1 import contrib as c, nn\nx = c.layers.flatten(nn)\n",
            f"from tensorflow.compat.v1 import nn\n{EST}x = tpudata_estimator.contrib.flatten(nn)\n",
        ),
    ],
)
def test_rewrites_imports(before: str, after: str) -> None:
    found = migrate(before)
    assert found.text == after
    assert found.notes == ()
    assert migrate(after).changes == 0


def test_removes_a_part_that_is_gone_from_an_import_of_tensorflow_2() -> None:
    found = migrate(
        "import tensorflow.contrib.layers\n"
        "x = tensorflow.contrib.layers.flatten(tensorflow.summary.create_file_writer)\n",
    )
    assert found.text == (
        f"import tensorflow\n{EST}x = tpudata_estimator.contrib.flatten(tensorflow.summary.create_file_writer)\n"
    )
    (note,) = found.notes
    assert note.text.startswith("the file has names that only TensorFlow 1 has, and names that only TensorFlow 2 has")


def test_rewrites_contrib_to_its_counterparts() -> None:
    found = migrate(
        "import tensorflow as tf\n"
        "a = tf.contrib.layers.flatten(x, scope='f'), tf.contrib.layers.l1_regularizer(0.1, scope='r')\n"
        "b = tf.contrib.layers.l2_regularizer(scale=0.1)\n"
        "c = tf.contrib.framework.load_checkpoint('d')\n"
        "d = tf.contrib.stateless.stateless_random_normal([3], seed=[1, 2])\n",
    )
    assert found.text == (
        "import tensorflow.compat.v1 as tf\n"
        f"{EST}"
        "a = tpudata_estimator.contrib.flatten(x, scope='f'), tpudata_estimator.contrib.l1_regularizer(0.1, scope='r')\n"
        "b = tpudata_estimator.contrib.l2_regularizer(scale=0.1)\n"
        "c = tf.train.load_checkpoint('d')\n"
        "d = tf.random.stateless_normal([3], seed=[1, 2])\n"
    )
    assert found.notes == ()


def test_rewrites_slim_to_the_tf_slim_package() -> None:
    found = migrate(
        "from tensorflow.contrib import slim\n"
        "import tensorflow.contrib.slim.nets as nets\n"
        "with slim.arg_scope([slim.conv2d, slim.batch_norm]):\n"
        "    net = nets.resnet_v2.resnet_v2_50(slim.conv2d(x, 3, 3))\n",
    )
    assert found.text == (
        "import tf_slim\n"
        "with tf_slim.arg_scope([tf_slim.conv2d, slim.batch_norm]):\n"
        "    net = nets.resnet_v2.resnet_v2_50(tf_slim.conv2d(x, 3, 3))\n"
    )
    assert [(note.line, note.text.partition(". ")[0]) for note in found.notes] == [
        (1, "tf_slim is a package"),
        (3, "tf.contrib.slim.batch_norm has no counterpart"),
        (4, "tf.contrib.slim.nets has no counterpart"),
    ]


def test_the_call_of_disable_v2_behavior_follows_the_import_of_the_module() -> None:
    found = migrate(
        "import tensorflow as tf\n"
        "def helper():\n"
        "    import tensorflow as tf\n"
        "    return tf.to_float(1)\n"
        "if __name__ == '__main__':\n"
        "    tf.Session().run(helper())\n"
    )
    assert found.text == (
        "import tensorflow.compat.v1 as tf\n"
        "tf.disable_v2_behavior()\n"
        "def helper():\n"
        "    import tensorflow.compat.v1 as tf\n"
        "    return tf.to_float(1)\n"
        "if __name__ == '__main__':\n"
        "    tf.Session().run(helper())\n"
    )


def test_new_imports_come_before_their_first_use() -> None:
    found = migrate(
        "try:\n"
        "    import tensorflow as tf\n"
        "except ImportError:\n"
        "    tf = None\n"
        "Base = tf.contrib.tpu.TPUEstimator\n"
        "import tensorflow.keras as keras\n"
    )
    assert found.text.index("import estimator as tpudata_estimator") < found.text.index("Base = tpudata_estimator")


def test_a_function_gets_each_new_import_once() -> None:
    found = migrate(
        "def build(x):\n"
        "    import tensorflow as tf\n"
        "    from tensorflow.contrib import slim\n"
        "    return slim.conv2d(x, 3, 3), tf.contrib.tpu.RunConfig\n"
        "def other(x):\n"
        "    from tensorflow.contrib import slim\n"
        "    return slim.conv2d(x, 3, 3)\n"
    )
    first, second = found.text.split("def other")
    for function in (first, second):
        assert function.count("import tf_slim\n") == 1
        assert function.count(EST) == 1
    assert [note.text for note in found.notes].count("tf_slim is a package. Install it: pip install tf_slim.") == 1


@pytest.mark.parametrize(
    "program",
    [
        "if X:\n    import tensorflow.compat.v1 as tf\nelse:\n    import tensorflow as tf\nC = tf.contrib.tpu.RunConfig\n",
        "try:\n    import tensorflow as tf\nexcept ImportError:\n    import tensorflow.compat.v1 as tf\n"
        "C = tf.contrib.tpu.RunConfig\n",
        "def build():\n    import tensorflow as tf\n    return tf.contrib.tpu.RunConfig\n"
        "if __name__ == '__main__':\n    import tensorflow as tf\n    build()\n",
        "def build():\n    import tensorflow as tf\n    return tf.placeholder(tf.float32)\n"
        "def main():\n    import tensorflow as tf\n    tf.Session().run(build())\nmain()\n",
    ],
)
def test_new_lines_follow_the_import_of_each_block_that_may_run_alone(program: str) -> None:
    text = migrate(program).text
    compile(text, "program", "exec")
    line = "tf.disable_v2_behavior()" if "Session" in program else EST.strip()
    lines = [line.strip() for line in text.splitlines()]
    assert text.count(line) == 2
    assert all(lines[number - 1].endswith("as tf") for number, found in enumerate(lines) if found == line)


@pytest.mark.parametrize(
    "program",
    [
        "try:\n    import tensorflow as tf\nexcept ImportError:\n    raise\n"
        "def f():\n    c = tf.contrib.tpu.RunConfig\n    from tensorflow.contrib import layers\n    return c, layers.flatten\n",
        "if TYPE_CHECKING:\n    from tensorflow.contrib import layers\nimport tensorflow as tf\n"
        "def f():\n    c = tf.contrib.tpu.RunConfig\n    from tensorflow.contrib import layers\n    return c, layers.flatten\n",
    ],
)
def test_functions_get_no_new_lines_if_the_module_has_them(program: str) -> None:
    text = migrate(program).text
    compile(text, "program", "exec")
    assert EST.strip() not in text[text.index("def f") :]
    assert EST.strip() in text


def test_an_import_after_a_colon_stays_in_its_line() -> None:
    text = migrate(
        "try:\n    import tensorflow as tf\nexcept ImportError: import tensorflow.compat.v1 as tf\n"
        "C = tf.contrib.tpu.RunConfig\n"
    ).text
    compile(text, "program", "exec")
    assert f"except ImportError: import tensorflow.compat.v1 as tf; {EST}" in text


def test_new_lines_follow_the_import_of_the_module_below_a_function() -> None:
    found = migrate(
        "def build():\n    import tensorflow as tf\n    return tf.contrib.tpu.RunConfig\nimport tensorflow as tf\nbuild()\n"
    )
    assert found.text == (
        "def build():\n    import tensorflow.compat.v1 as tf\n    return tpudata_estimator.tpu.RunConfig\n"
        f"import tensorflow.compat.v1 as tf\n{EST}build()\n"
    )

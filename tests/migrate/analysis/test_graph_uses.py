"""Sessions: a session program keeps TensorFlow 1's behaviour; sessions next to an estimator need a graph."""

from tests.migrate.command import CommandResult, migrate, migrate_files

SESSIONS = """\
import tensorflow as tf

def run(x):
    with tf.Session() as session:
        return session.run(x)

def main():
    x = tf.placeholder(tf.float32, [])
    run(x)

if __name__ == "__main__":
    main()
"""
ESTIMATOR = """\
import tensorflow as tf

def model_fn(features, labels, mode):
    x = tf.placeholder_with_default(features, [3])
    saver = tf.train.Saver()
    return tf.estimator.EstimatorSpec(mode, loss=x)

def serving():
    return tf.placeholder(tf.float32, [3])

def write(folder):
    return tf.summary.FileWriter(folder)

def main(_):
    estimator = tf.estimator.Estimator(model_fn)
    x = tf.placeholder(tf.float32, [])
    tf.train.Saver()
    write("d")
    with tf.Graph().as_default():
        tf.placeholder(tf.float32, [])
        with tf.Session() as session:
            session.run(tf.gradients(1, 2))
    graph = tf.Graph()
    with graph.as_default(), tf.Session():
        pass
    with tf.Session(graph=graph):
        tf.train.Saver()

if __name__ == "__main__":
    tf.app.run()
"""


def lines(found: CommandResult) -> list[tuple[int, str]]:
    return [(note.line, note.text.partition(" ")[0]) for note in found.notes]


def test_a_session_program_keeps_tensorflow_1_behaviour() -> None:
    found = migrate(SESSIONS)
    head = "import tensorflow.compat.v1 as tf\ntf.disable_v2_behavior()\n"
    assert found.text == SESSIONS.replace("import tensorflow as tf\n", head)
    assert found.notes == ()
    assert migrate(found.text).changes == 0


def test_keeps_the_behaviour_that_a_program_chose() -> None:
    for call in ("disable_v2_behavior", "disable_eager_execution", "enable_eager_execution"):
        text = SESSIONS.replace("\n\n", f"\ntf.{call}()\n\n", 1)
        found = migrate(text)
        assert found.text == text.replace("import tensorflow as tf", "import tensorflow.compat.v1 as tf")
        assert found.notes == ()


def test_notes_sessions_without_tensorflow_1_behaviour() -> None:
    text = SESSIONS.replace("import tensorflow as tf", "import tensorflow.compat.v1 as tf")
    found = migrate(text)
    assert found.text == text
    assert lines(found) == [(4, "tf.Session")]
    assert found.notes[0].text.endswith("Call tf.disable_v2_behavior() after the imports.")
    # A part of a program, without the code that starts it.
    part = migrate(SESSIONS.partition("def main")[0])
    assert part.notes[0].text.endswith("Call tf.disable_v2_behavior() in the program that imports this file.")


def test_adds_the_behaviour_call_where_tensorflow_is_imported() -> None:
    part = SESSIONS.partition("if __name__")[0]
    found = migrate_files({"main.py": "import part\npart.main()\n", "part.py": part})
    assert "tf.disable_v2_behavior()" in found["part.py"].text
    assert found["main.py"].changes == 0
    found = migrate_files(
        {"main.py": "import part\nimport tensorflow as tf\npart.main()\ntf.to_float(1)\n", "part.py": part}
    )
    assert "tf.disable_v2_behavior()" not in found["part.py"].text
    assert "tf.disable_v2_behavior()" in found["main.py"].text
    assert not found["main.py"].notes + found["part.py"].notes


def test_notes_sessions_next_to_an_estimator() -> None:
    text = ESTIMATOR.replace("\n\n", "\ntf.disable_v2_behavior()\n\n", 1)
    found = migrate(text)
    assert lines(found) == [(13, "tf.summary.FileWriter"), (17, "tf.placeholder"), (18, "tf.train.Saver")]
    assert "disable_v2_behavior" not in found.text
    assert [found.text.splitlines()[note.new_line - 1].split("(")[0].split()[-1] for note in found.notes] == [
        "tf.summary.FileWriter",
        "tf.placeholder",
        "tf.train.Saver",
    ]
    # The function that has the writer may be in another file.
    head, _, tail = ESTIMATOR.partition("def write(folder):\n    return tf.summary.FileWriter(folder)\n")
    helper = "import tensorflow as tf\ndef write(folder):\n    return tf.train.Saver(), tf.gradients(1, folder)\n"
    split = migrate_files(
        {"main.py": f"import helper\n{head}{tail}".replace('write("d")', 'helper.write("d")'), "helper.py": helper}
    )
    assert lines(split["helper.py"]) == [(3, "tf.gradients"), (3, "tf.train.Saver")]


def test_two_programs_do_not_affect_each_other() -> None:
    found = migrate_files({"train.py": ESTIMATOR, "iris.py": SESSIONS})
    assert "disable_v2_behavior" in found["iris.py"].text
    assert "disable_v2_behavior" not in found["train.py"].text
    assert found["iris.py"].notes == ()


def test_reads_expressions_deeper_than_the_stack() -> None:
    text = f"import tensorflow as tf\nx = tf.Session(){' + 1' * 1500}\n"
    assert "tf.disable_v2_behavior()" in migrate(text).text


def test_notes_sessions_on_a_tpu() -> None:
    text = (
        "import tensorflow as tf\nfrom tensorflow.contrib import tpu\n"
        "with tf.Session('grpc://t') as session:\n    session.run(tpu.initialize_system())\n"
    )
    found = migrate(text)
    assert "session.run(tf.tpu.initialize_system())" in found.text
    assert [(note.line, note.text[:17]) for note in found.notes] == [(4, "sessions on a TPU")]
    assert [note.text[:17] for note in migrate(found.text).notes] == ["sessions on a TPU"]

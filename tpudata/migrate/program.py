"""Migration of the files of a program: their text with current names, and notes on what a person has to do."""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Mapping

from tpudata.errors import DatasetError
from tpudata.migrate.analysis.plans import plan_files
from tpudata.migrate.calls import CallRewriter
from tpudata.migrate.checks import find_dimension_values, find_indirect_imports, find_private_imports, find_reused_names
from tpudata.migrate.imports import rewrite_imports

# Environment variable that makes TensorFlow use tf_keras, the old Keras.
_OLD_KERAS = "TF_USE_LEGACY_KERAS"


@dataclasses.dataclass(frozen=True)
class MigrationNote:
    """A line that a person must change.

    Attributes:
        line: its number in the original file, from 1.
        new_line: its number in the rewritten file, from 1.
        text: the problem and the fix.
    """

    line: int
    new_line: int
    text: str


@dataclasses.dataclass(frozen=True)
class Migration:
    """Result of migrating a file.

    Attributes:
        text: the file with current names.
        change_count: number of edits of the text.
        notes: what is left to do, in the order of lines.
    """

    text: str
    change_count: int
    notes: tuple[MigrationNote, ...]


def migrate(text: str, path: str) -> Migration:
    """Migrate a program of one file.

    Args:
        text: the program.
        path: its path, for errors.

    Raises:
        DatasetError: the text is not Python 3.
    """
    return migrate_files({path: text})[path]


def migrate_files(contents: Mapping[str, str]) -> dict[str, Migration]:
    """Migrate files; a file that shows TensorFlow's release may decide for files that do not.

    Args:
        contents: contents of the files by their paths.

    Returns:
        The migration of each file, by its path.

    Raises:
        DatasetError: a file is not Python 3.
    """
    trees = {path: _parse(text, path) for path, text in contents.items()}
    plans = plan_files(trees)
    # One note on the old Keras is enough for all files. If one of them sets the variable, none is needed.
    needs_keras_note = not any(_OLD_KERAS in text for text in contents.values())
    migrations: dict[str, Migration] = {}
    for path, text in contents.items():
        rewriter = CallRewriter(text, trees[path], plans[path])
        rewriter.notes += find_indirect_imports(path, trees[path], plans)
        migrations[path] = _migrate(rewriter, notes_keras=needs_keras_note)
        needs_keras_note = needs_keras_note and rewriter.old_keras_line is None
    return migrations


def _parse(text: str, path: str) -> ast.Module:
    """Return the syntax tree of a file; DatasetError if it is not Python 3."""
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = getattr(error, "lineno", None)
        location = path if line is None else f"{path}:{line}"
        raise DatasetError(
            f"{location}: not a program in Python 3 (got {getattr(error, 'msg', error)}). Run 2to3 on it first if it is Python 2."
        ) from None


def _migrate(rewriter: CallRewriter, *, notes_keras: bool) -> Migration:
    """Rewrite a file, and return the result.

    Args:
        rewriter: rewriter of the file, which is not rewritten yet.
        notes_keras: whether to note the first name that needs the old Keras.
    """
    tree, bindings = rewriter.tree, rewriter.plan.bindings
    imported_names = {name for name, binding in bindings.items() if not isinstance(binding.statement, ast.Assign)}
    rewriter.notes += [*find_reused_names(tree, imported_names), *find_private_imports(tree, imported_names)]
    if bindings:
        for node in ast.walk(tree):
            rewriter.rewrite(node)
        rewrite_imports(rewriter)
        if not rewriter.plan.has_old_shapes:
            rewriter.notes += find_dimension_values(tree, rewriter.root)
    if rewriter.old_keras_line is not None and notes_keras:
        rewriter.notes.append(
            (
                rewriter.old_keras_line,
                f"tf.layers and tf.nn.rnn_cell need the old Keras. Install tf_keras, and run with {_OLD_KERAS}=1.",
            )
        )
    edits = rewriter.edits
    notes = [MigrationNote(line, edits.find_edited_line(line), text) for line, text in sorted(set(rewriter.notes))]
    return Migration(edits.render(), edits.edit_count, tuple(notes))

"""Migration of the files of a program: their text with current names, and notes on what a person has to do."""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Mapping

from tpudata.errors import DatasetError
from tpudata.migrate.analysis.plans import plan_files
from tpudata.migrate.calls import CallRewriter
from tpudata.migrate.checks import dimension_values, find_reused_names, indirect_imports, private_imports
from tpudata.migrate.imports import rewrite_imports

_OLD_KERAS = "TF_USE_LEGACY_KERAS"


@dataclasses.dataclass(frozen=True)
class MigrationNote:
    """Line that a person must change.

    Attributes:
        line: number of its line in the given program, from 1.
        new_line: number of its line in the rewritten program.
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
        changes: number of rewritten places.
        notes: what is left to do, in the order of lines.
    """

    text: str
    changes: int
    notes: tuple[MigrationNote, ...]


def migrate(text: str, path: str) -> Migration:
    """Rewrite a program of one file with current names.

    Args:
        text: the program.
        path: its path, for errors.

    Raises:
        DatasetError: it is not Python 3.
    """
    return migrate_files({path: text})[path]


def migrate_files(texts: Mapping[str, str]) -> dict[str, Migration]:
    """Rewrite the files of a program with current names; evidence in one file counts for all.

    Args:
        texts: the files by their paths.

    Raises:
        DatasetError: one is not Python 3.
    """
    trees = {path: _parse(text, path) for path, text in texts.items()}
    plans = plan_files(trees)
    sets_old_keras = any(_OLD_KERAS in text for text in texts.values())
    migrations: dict[str, Migration] = {}
    for path, text in texts.items():
        program = CallRewriter(text, trees[path], plans[path])
        program.notes += indirect_imports(path, trees[path], plans)
        migrations[path] = _migrate(program, mentions_keras=not sets_old_keras)
        sets_old_keras |= program.old_keras is not None
    return migrations


def _parse(text: str, path: str) -> ast.Module:
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = getattr(error, "lineno", None)
        location = path if line is None else f"{path}:{line}"
        raise DatasetError(
            f"{location}: not a program in Python 3 (got {getattr(error, 'msg', error)}). Run 2to3 on it first if it is Python 2."
        ) from None


def _migrate(program: CallRewriter, *, mentions_keras: bool) -> Migration:
    tree, bindings = program.tree, program.plan.bindings
    imports = {name: item for name, item in bindings.items() if not isinstance(item.statement, ast.Assign)}
    program.notes += [*find_reused_names(tree, imports), *private_imports(tree)]
    if bindings:
        for node in ast.walk(tree):
            program.rewrite(node)
        rewrite_imports(program)
        if not program.plan.has_old_shapes:
            program.notes += dimension_values(tree, program.root)
    if program.old_keras is not None and mentions_keras:
        program.notes.append(
            (
                program.old_keras,
                f"tf.layers and tf.nn.rnn_cell need the old Keras. Install tf_keras, and run with {_OLD_KERAS}=1.",
            )
        )
    edits = program.text
    notes = [MigrationNote(line, edits.new_line(line), text) for line, text in sorted(set(program.notes))]
    return Migration(edits.render(), len(edits), tuple(notes))

"""`tpudata migrate FILE...`: rewrites the names of TensorFlow 1 in programs for TensorFlow's TPUEstimator."""

from __future__ import annotations

import difflib
import shutil
import sys
import uuid
from collections.abc import Sequence
from pathlib import Path

from tpudata.console.flags import FlagParser
from tpudata.console.tables import count_text
from tpudata.errors import DatasetError, StorageError
from tpudata.migrate.program import Migration, migrate_files

# Exit code if a person has something to do.
_LEFT_TO_DO = 1
# Python accepts one at the beginning of a program, which its parser does not.
_BYTE_ORDER_MARK = "\ufeff"


def run(argv: Sequence[str]) -> int:
    """Run the command with its flags and return its exit code: 1 if something is left for a person to do."""
    flags = new_parser().parse(argv)
    # Read all files before any is written: a file that cannot be read leaves all files unchanged.
    files = {path: _read(path) for path in dict.fromkeys(flags.files)}
    contents = {path: text.removeprefix(_BYTE_ORDER_MARK) for path, text in files.items()}
    migrations = migrate_files(contents)
    for path, migration in migrations.items():
        if flags.diff:
            _print_diff(path, contents[path], migration)
        elif migration.text != contents[path]:
            mark = files[path].removesuffix(contents[path])
            _write(Path(path), mark + migration.text)
    for path, migration in migrations.items():
        change = "to rewrite" if flags.diff else "rewritten"
        print(
            f"{path}: {count_text(migration.change_count, 'place')} {change}, {len(migration.notes)} left to do",
            file=sys.stderr,
        )
        for note in migration.notes:
            # With --diff, the file keeps its lines.
            print(f"{path}:{note.line if flags.diff else note.new_line}: {note.text}")
    return _LEFT_TO_DO if any(migration.notes for migration in migrations.values()) else 0


def new_parser() -> FlagParser:
    """Return the parser of the command's flags."""
    parser = FlagParser(
        "tpudata migrate",
        "Rewrites programs for the original TPUEstimator: imports and names of TensorFlow 1 become those of today. What it cannot "
        "rewrite, it lists with its line. Pass all files of a program together: what one of them shows of TensorFlow's release "
        "counts for all. Exit code 1: something is left to do.",
        topics=("porting", "original_estimator"),
    )
    parser.add_argument("files", metavar="FILE", nargs="+", help="a Python file; it is rewritten in place")
    parser.add_switch("--diff", default=False, help="print what would change, and write nothing")
    return parser


def _read(path: str) -> str:
    """Return the text of a file, with its line ends.

    Raises:
        StorageError: it cannot be read.
        DatasetError: it is not UTF-8, or a notebook.
    """
    if path.endswith(".ipynb"):
        # Its JSON is also an expression of Python, in which nothing would be found.
        raise DatasetError(f"{path}: a notebook. Make a program of it first: jupyter nbconvert --to script {path}")
    if Path(path).exists() and not Path(path).is_file():
        # Reading a pipe could wait for ever.
        raise StorageError(f"{path}: cannot be read: not a file. Pass the path of a Python file.")
    try:
        with open(path, encoding="utf-8", newline="") as file:
            return file.read()
    except UnicodeDecodeError as error:
        wrong_byte = f"byte {error.object[error.start]:#04x} at {error.start}"
        raise DatasetError(f"{path}: not text in UTF-8 (got {wrong_byte}). Convert it.") from None
    except OSError as error:
        raise StorageError(f"{path}: cannot be read: {error.strerror}. Pass the path of a Python file.") from None


def _write(path: Path, text: str) -> None:
    """Replace a file atomically, with its permissions; a link stays a link. StorageError if the file cannot be written."""
    target = path.resolve()
    temporary = target.with_name(f".{target.name}.{uuid.uuid4().hex}")
    try:
        temporary.write_text(text, encoding="utf-8", newline="")
        shutil.copymode(target, temporary)
        temporary.replace(target)
    except OSError as error:
        raise StorageError(f"{path}: cannot be written: {error.strerror}. It is as before.") from None
    finally:
        temporary.unlink(missing_ok=True)


def _print_diff(path: str, text: str, migration: Migration) -> None:
    """Print the difference between a file's text and its migration, in the unified format."""
    # As `diff` does, a last line without a line break is marked.
    lines = difflib.unified_diff(text.splitlines(keepends=True), migration.text.splitlines(keepends=True), path, path)
    sys.stdout.writelines(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)

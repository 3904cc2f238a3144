"""Python blocks of the README and the docs, run as they stand."""

from __future__ import annotations

import contextlib
import io
import os
import re
import runpy
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def python_blocks(document: str) -> list[str]:
    """Return the Python blocks of a document, a path below the repository's root."""
    return re.findall(r"^```python\n(.*?)^```", (ROOT / document).read_text(), flags=re.DOTALL | re.MULTILINE)


def run_python(code: str, folder: Path, smaller: Mapping[str, str] = {}) -> str:
    """Run Python in this process, in a folder, and return what it prints.

    Args:
        code: the program.
        folder: the working directory.
        smaller: what is replaced, so that it takes less time; each must be there.
    """
    for old, new in smaller.items():
        assert old in code
        code = code.replace(old, new)
    # A file, since TensorFlow reads the source of the functions in it.
    program = folder / "program.py"
    program.write_text(code)
    out = io.StringIO()
    before = Path.cwd()
    os.chdir(folder)
    try:
        with contextlib.redirect_stdout(out):
            runpy.run_path(str(program), run_name="__main__")
    finally:
        os.chdir(before)
    return out.getvalue()

"""The README's Python runs as it stands there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

README = Path(__file__).resolve().parent.parent / "README.md"


def test_the_examples_run_in_order(digits_dataset: Path, tmp_path: Path) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", README.read_text(), flags=re.DOTALL | re.MULTILINE)
    assert len(blocks) == 2
    (tmp_path / "quickstart").mkdir()
    (tmp_path / "quickstart" / "dataset").symlink_to(digits_dataset)
    program = tmp_path / "program.py"
    # The fixture has 200 training digits; the number of steps is all that is changed.
    program.write_text("\n".join(blocks).replace("max_steps=500", "max_steps=20"))
    done = subprocess.run([sys.executable, program.name], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    evaluated, shown = done.stdout.splitlines()
    assert re.search(r"'accuracy': np\.float32\(0\.\d+\)", evaluated)
    assert evaluated.endswith("'global_step': 20}")
    assert shown == "(128, 8, 8, 1) <dtype: 'uint8'> <dtype: 'int32'>"
    (comment,) = re.findall(r"# (\(128.*)$", blocks[1], flags=re.MULTILINE)
    assert comment == shown.replace("<dtype: '", "").replace("'>", "")

"""scripts/docs_commands.py: the commands that it finds on a page."""

from __future__ import annotations

import runpy
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "scripts" / "docs_commands.py"
find_commands: Callable[[str], Iterable[str]] = runpy.run_path(str(SCRIPT))["find_commands"]


@pytest.mark.parametrize(
    ("page", "commands"),
    [
        ("    tpudata a \\\n      --b  # why\n", ["tpudata a --b"]),
        ("```sh\ntpudata a \\\n  --b \\\n  --c &\n```\n", ["tpudata a --b --c"]),
        ("    tpudata a \\", ["tpudata a"]),
        ("    tpudata a\n    tpudata b \\\n", ["tpudata a", "tpudata b"]),
    ],
)
def test_joins_the_lines_of_a_command_up_to_the_end_of_the_page(page: str, commands: list[str]) -> None:
    assert list(find_commands(page)) == commands

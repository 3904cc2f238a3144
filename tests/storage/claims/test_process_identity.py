"""Whether a process is still there, by /proc and by ps.

A claim shows whether a process is there, but not by which of the two.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable

import pytest

from tpudata.storage.claims.process_identity import identify_machine, read_birth, read_birth_by_ps

needs_ps = pytest.mark.skipif(shutil.which("ps") is None, reason="needs ps")


@pytest.mark.parametrize("birth", [read_birth, pytest.param(read_birth_by_ps, marks=needs_ps)])
def test_birth_of_a_process_is_constant_until_it_ends(
    birth: Callable[[int], str | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    found = birth(process.pid)
    assert found
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    assert birth(process.pid) == found
    process.kill()
    # Dead from here on, also before its parent has asked.
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert birth(process.pid) is None
    process.communicate()
    assert birth(process.pid) is None


def test_machine_identity_is_the_same_in_another_process() -> None:
    program = "from tpudata.storage.claims.process_identity import identify_machine; print(identify_machine())"
    other = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert other.stdout.strip() == identify_machine()

"""The garbage collector while a command loads TensorFlow or Beam.

Tests call the private function: a command shows only the time that it saves.
"""

import gc
import sys
from collections.abc import Sequence

import pytest

from tests.helpers import forked
from tpudata.console.loading import loading_without_gc
from tpudata.console.process import run_command


@pytest.mark.parametrize("fails", [False, True])
def test_a_command_loads_without_the_collector(fails: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["tpudata"])

    def command(_: Sequence[str]) -> int:
        frozen = gc.get_freeze_count()
        with loading_without_gc():
            assert not gc.isenabled()
            if fails:
                raise ImportError("no library")
        assert gc.get_freeze_count() > frozen
        return 7

    if fails:
        with pytest.raises(ImportError, match="no library"):
            run_command(command)
    else:
        assert run_command(command) == 7
    assert gc.isenabled()


OF_A_COMMAND = """
import gc, os
from tpudata.console.loading import loading_without_gc
from tpudata.console.process import end_with_parent

end_with_parent(os.pipe()[0])
with loading_without_gc():
    print(gc.isenabled())
print(gc.isenabled())
"""


def test_a_process_started_by_a_command_loads_without_the_collector() -> None:
    done = forked.run("-c", OF_A_COMMAND)
    assert (done.stdout.split(), done.stderr) == (["False", "True"], "")


def test_another_program_keeps_its_collector() -> None:
    frozen = gc.get_freeze_count()
    with loading_without_gc():
        assert gc.isenabled()
    # Other threads may free some objects.
    assert gc.get_freeze_count() <= frozen
    gc.disable()
    try:
        with loading_without_gc():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()

"""The child process that compiles for a TPU: results, rejections, crash and time limit."""

import importlib.util
import os
import re
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.helpers.libtpu import needs_libtpu
from tests.helpers.processes import wait_for
from tpudata.devices.tpu_compiler.compiler import CompilerError, Fault, compile_for, explain_missing_compiler
from tpudata.devices.tpu_compiler.topologies import find_slice

V5E = find_slice("v5e-4", "test")


def export_function(function: Callable[[Any], Any], shape: tuple[int, ...], dtype: Any) -> Any:
    """Return a function of one replicated argument, exported for the devices of V5E."""
    import jax
    from jax import export
    from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec

    from tpudata.devices.tpu_compiler.device_loop import DeviceLoop

    sharding = NamedSharding(AbstractMesh((V5E.replicas,), ("all",)), PartitionSpec())
    with jax.enable_x64(True):
        argument = jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)
        exported = export.export(jax.jit(function), platforms=["tpu"])(argument)
    return DeviceLoop(exported, "all", [()], [], 1, 0)


@needs_libtpu
def test_reports_the_compilers_numbers() -> None:
    found = compile_for(V5E, export_function(lambda x: x @ x, (1024, 1024), np.float32), "quick")
    assert found.flops == pytest.approx(2 * 1024**3, rel=0.01)
    assert found.arguments == found.outputs == 4 * 1024**2
    assert found.bytes_accessed >= 8 * 1024**2
    assert re.fullmatch(r"libtpu [\d.]+", found.compiler)


@needs_libtpu
def test_a_rejected_program_raises_rejected() -> None:
    import jax

    loop = export_function(jax.numpy.linalg.cholesky, (8, 8), np.float64)
    with pytest.raises(CompilerError, match="INVALID_ARGUMENT") as caught:
        compile_for(V5E, loop, "quick")
    assert caught.value.fault is Fault.REJECTED


@needs_libtpu
def test_names_a_wrong_libtpu_flag(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LIBTPU_INIT_ARGS", "--xla_no_such_flag=1")
    with pytest.raises(CompilerError, match=r"ended with exit code 1: ERROR: .*xla_no_such_flag") as caught:
        compile_for(V5E, export_function(lambda x: x, (8,), np.float32), "quick")
    assert caught.value.fault is Fault.START


def kill_compiler() -> None:
    """Abort the compiler that this process starts, as soon as it compiles."""

    def find() -> list[int]:
        children = Path(f"/proc/{os.getpid()}/task").glob("*/children")
        numbers = [int(number) for path in children for number in path.read_text().split()]
        # A child that has just been forked has this process's arguments.
        folders = {n: Path(f"/proc/{n}/cmdline").read_bytes().strip(b"\0").rpartition(b"\0")[2] for n in numbers}
        return [n for n, folder in folders.items() if Path(folder.decode(), "lowered").exists()]

    wait_for(lambda: bool(find()))
    os.kill(find()[0], signal.SIGABRT)


@needs_libtpu
def test_a_compiler_crash_raises_an_error() -> None:
    import jax

    thread = threading.Thread(target=kill_compiler)
    thread.start()
    loop = export_function(
        lambda x: jax.lax.fori_loop(0, 9, lambda _, y: jax.numpy.sort(y @ y), x), (512, 512), np.float32
    )
    with pytest.raises(CompilerError, match=r"^the compiler ended by SIGABRT$") as caught:
        compile_for(V5E, loop, "quick")
    thread.join()
    assert caught.value.fault is Fault.CRASH


@needs_libtpu
def test_a_program_beyond_the_hbm_raises_memory() -> None:
    loop = export_function(lambda x: x + 1, (60_000, 100_000), np.float32)
    with pytest.raises(CompilerError, match=r"exceeds available HBM \(15\.75G\)") as caught:
        compile_for(V5E, loop, "quick")
    assert caught.value.fault is Fault.MEMORY


@needs_libtpu
def test_gives_up_at_the_time_limit() -> None:
    with pytest.raises(CompilerError, match="no program within 0 seconds") as caught:
        compile_for(V5E, export_function(lambda x: x, (8,), np.float32), "quick", time_limit=0.01)
    assert caught.value.fault is Fault.TIME


def test_names_the_missing_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    hidden = {"libtpu"}
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name in hidden else find(name))
    assert re.match(r"libtpu not installed\. Run: pip install .*\[tpu\]", explain_missing_compiler() or "")
    hidden.add("jax")
    assert (explain_missing_compiler() or "").startswith("jax and libtpu not installed")

"""Compilation for a TPU with libtpu, in a child process."""

import dataclasses
import enum
import importlib.util
import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from tpudata.console.tables import count_text
from tpudata.devices.tpu_compiler.topologies import TPUSlice
from tpudata.error_text.libraries import NO_DEVICE_MEMORY
from tpudata.errors import TpudataError, UsageError
from tpudata.installation import format_install_command

if TYPE_CHECKING:
    from tpudata.devices.tpu_compiler.device_loop import DeviceLoop  # It imports jax.

_log = logging.getLogger("tpudata")
_PROGRAM = Path(__file__).with_name("topology_compiler.py")
# jax_optimization_level by effort; UNKNOWN leaves the choice to the compiler.
EFFORTS = {"quick": "O0", "full": "UNKNOWN"}
# ResNet-50 takes half a minute at the quick effort, and many minutes at the full one.
_TIME_LIMIT_SECONDS = {"quick": 900, "full": 7200}
# For a machine without a TPU: libtpu does not query Google's metadata server, and several processes may load it at the same time.
_CHILD_ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu",
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_WORKER_ID": "0",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "TPU_LOG_DIR": "disabled",
    "TPU_MIN_LOG_LEVEL": "3",
    "TPU_STDERR_LOG_LEVEL": "3",
    # Do not import from the program's folder, whose modules have plain names.
    "PYTHONSAFEPATH": "1",
}


class Fault(enum.Enum):
    """Reason why the compiler made no program.

    Attributes:
        REJECTED: the compiler rejected the program.
        MEMORY: the program needs more HBM than a device has.
        CRASH: the compiler ended without an answer.
        START: the compiler's process ended before it began to compile.
        TIME: the compiler took too long.
    """

    REJECTED = "rejected"
    MEMORY = "memory"
    CRASH = "crash"
    START = "start"
    TIME = "time"


class CompilerError(TpudataError):
    """The TPU's compiler did not compile a program.

    Attributes:
        fault: reason why there is no program.
    """

    def __init__(self, fault: Fault, message: str) -> None:
        super().__init__(message)
        self.fault = fault

    def __reduce__(self) -> tuple[type, tuple[Fault, str]]:
        return type(self), (self.fault, str(self))


@dataclasses.dataclass(frozen=True)
class CompiledLoop:
    """Sizes and costs of a loop of steps as the compiler reports them, all for one device.

    Attributes:
        compiler: name and version of the compiler.
        arguments: bytes of HBM for the variables and the batches of a loop.
        outputs: bytes of HBM for results that do not take the place of arguments.
        temporaries: bytes of HBM for values within a step.
        code: bytes of HBM for the program.
        flops: floating-point operations of a step.
        bytes_accessed: bytes that the operations of a step read and write.
        seconds: duration of the compilation.
    """

    compiler: str
    arguments: int
    outputs: int
    temporaries: int
    code: int
    flops: float
    bytes_accessed: float
    seconds: float

    @property
    def hbm(self) -> int:
        """Bytes of HBM in all."""
        return self.arguments + self.outputs + self.temporaries + self.code


def explain_missing_compiler() -> str | None:
    """Return the reason why nothing can be compiled for a TPU on this machine, with the fix; None if programs can be compiled."""
    missing = [name for name in ("jax", "libtpu") if importlib.util.find_spec(name) is None]
    if missing:
        return f"{' and '.join(missing)} not installed. Run: {format_install_command('tpu')}"
    from tpudata.devices.spmd.stablehlo import check_jax_version

    try:
        check_jax_version()
    except UsageError as error:
        return str(error)
    return None


def compile_for(tpu: TPUSlice, loop: "DeviceLoop", effort: str, time_limit: float | None = None) -> CompiledLoop:
    """Compile a loop for all devices of a slice.

    Args:
        tpu: the slice that the program is for.
        loop: the loop, exported for as many replicas as the slice has devices.
        effort: a key of EFFORTS: "quick" finds a program that may be slower, and "full" the program that a TPU would run.
        time_limit: seconds after which to give up; None for the effort's default.

    Raises:
        CompilerError: the compiler rejected the loop, crashed, took too long or did not start, or the loop needs too much HBM.
    """
    timeout_seconds = _TIME_LIMIT_SECONDS[effort] if time_limit is None else time_limit
    with tempfile.TemporaryDirectory(prefix="tpudata-") as folder_name:
        folder = Path(folder_name)
        (folder / "program").write_bytes(loop.exported.serialize())
        request = {
            "topology": tpu.topology,
            "topology_options": tpu.topology_options,
            "axis": loop.axis,
            "partitions": loop.partitions,
            "donated": loop.donated,
            "level": EFFORTS[effort],
        }
        (folder / "request.json").write_text(json.dumps(request))
        # XLA_FLAGS of this process may be for other compilers, and libtpu aborts on flags that it does not know.
        environment = {key: setting for key, setting in os.environ.items() if key != "XLA_FLAGS"}
        exit_code, output = _run_compiler(
            folder, {**environment, **_CHILD_ENVIRONMENT, "TPU_ACCELERATOR_TYPE": tpu.name}, timeout_seconds
        )
        answer_file = folder / "answer.json"
        if not answer_file.exists():
            # The child makes the file `lowered` when it begins to compile.
            fault = Fault.CRASH if (folder / "lowered").exists() else Fault.START
            raise CompilerError(fault, _describe_end(exit_code, output))
        answer = json.loads(answer_file.read_text())
    if "error" in answer:
        message = answer["error"]
        raise CompilerError(Fault.MEMORY if NO_DEVICE_MEMORY.match(message) else Fault.REJECTED, message)
    compiled = CompiledLoop(**answer)
    _log.info("%s compiled the loop for %s in %.1f seconds.", compiled.compiler, tpu.name, compiled.seconds)
    return compiled


def _run_compiler(folder: Path, environment: dict[str, str], timeout_seconds: float) -> tuple[int, str]:
    """Run topology_compiler.py on a folder; return its exit code and the last 2000 characters of its stderr.

    Args:
        folder: folder with the request, into which the program writes its answer.
        environment: environment variables of the program.
        timeout_seconds: seconds after which to end the program.

    Raises:
        CompilerError: the program took too long.
    """
    stderr_file = folder / "stderr"
    with stderr_file.open("wb") as file:
        # The child ends when its stdin does, so it does not outlive this process.
        process = subprocess.Popen(
            [sys.executable, str(_PROGRAM), str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=file,
            env=environment,
        )
    with process:
        try:
            exit_code = process.wait(timeout_seconds)
        except subprocess.TimeoutExpired:
            raise CompilerError(
                Fault.TIME, f"no program within {count_text(round(timeout_seconds), 'second')}"
            ) from None
        finally:
            process.kill()  # Without effect on a process that has ended.
    return exit_code, stderr_file.read_text(errors="replace")[-2000:]


def _describe_end(exit_code: int, output: str) -> str:
    """Return how the compiler ended: by a signal, which a negative exit code stands for, or with the last line of its output."""
    if exit_code < 0:
        return f"the compiler ended by {signal.Signals(-exit_code).name}"
    lines = [line for line in output.splitlines() if line.strip()]
    return f"the compiler ended with exit code {exit_code}: {lines[-1].strip() if lines else 'no output'}"

"""Cost of a compiled step: memory, the shortest time that a chip's peaks allow, and the rate of records that keeps it fed."""

import dataclasses
import math
from typing import Any

from tpudata.devices.tpu_compiler.compiler import CompiledLoop
from tpudata.devices.tpu_compiler.topologies import TPUSlice


@dataclasses.dataclass(frozen=True)
class StepCost:
    """Cost of a mode's step on a slice.

    Attributes:
        mode: a value of ModeKeys.
        tpu: the slice that the step is compiled for.
        effort: effort of the compilation, a key of EFFORTS.
        batch_size: records of a step, of all replicas.
        loop_steps: number of steps in a loop, whose batches are on the devices together.
        batch_bytes: bytes of a step's batch on one device.
        compiled: sizes and costs on one device, as the compiler reports them.
    """

    mode: str
    tpu: TPUSlice
    effort: str
    batch_size: int
    loop_steps: int
    batch_bytes: int
    compiled: CompiledLoop

    @property
    def computing_seconds(self) -> float:
        """Time of the step's operations at the chip's peak."""
        return self.compiled.flops / self.tpu.chip.device_flops

    @property
    def memory_seconds(self) -> float:
        """Time of the step's reads and writes at the peak of the chip's HBM."""
        return self.compiled.bytes_accessed / self.tpu.chip.device_bandwidth

    @property
    def least_seconds(self) -> float:
        """Lower bound of the step's time."""
        return max(self.computing_seconds, self.memory_seconds)

    @property
    def records_per_second(self) -> float:
        """Records a second that all hosts together must deliver so that no step waits; infinite for a step without work."""
        return self.batch_size / self.least_seconds if self.least_seconds else math.inf

    @property
    def next_batches(self) -> int:
        """Bytes of the next loop's batches, which are sent to a device while a loop runs."""
        return self.loop_steps * self.batch_bytes

    def to_json(self) -> dict[str, Any]:
        """Return the numbers as a JSON object, with the mode but without the slice and the effort."""
        compiled = self.compiled
        # JSON has no infinity.
        rate = self.records_per_second if math.isfinite(self.records_per_second) else None
        return {
            "mode": self.mode,
            "batch_size": self.batch_size,
            "loop_steps": self.loop_steps,
            # All sizes in `hbm` are bytes.
            "hbm": {
                "arguments": compiled.arguments,
                "temporaries": compiled.temporaries,
                "outputs": compiled.outputs,
                "code": compiled.code,
                "total": compiled.hbm,
                "next_batches": self.next_batches,
                "device": self.tpu.chip.device_hbm,
            },
            "flops": compiled.flops,
            "bytes_accessed": compiled.bytes_accessed,
            "least_seconds": self.least_seconds,
            "bound": "flops" if self.computing_seconds >= self.memory_seconds else "hbm",
            "records_per_second": rate,
            "records_per_second_per_chip": None if rate is None else rate / self.tpu.chips,
            "records_per_second_per_host": None if rate is None else rate / self.tpu.hosts,
            "compile_seconds": compiled.seconds,
        }


@dataclasses.dataclass(frozen=True)
class FeedingRate:
    """Measured rate of feeding on one host.

    Attributes:
        records_per_second: records that the host delivers in a second.
        cpu_seconds_per_record: CPU time of a record; None if it was not measured.
        cores: number of cores of the machine that measured it; None if unknown.
    """

    records_per_second: float
    cpu_seconds_per_record: float | None = None
    cores: int | None = None

    def compare(self, cost: StepCost) -> dict[str, Any]:
        """Return a JSON object that compares this rate with the rate that a step needs on each host.

        Returns:
            `records_per_second` that was measured, `measured_on_cores` (None if unknown), the rate `needed` on each host (None if
            infinite), `host_cores`, the number of cores that are enough for the needed rate if all work scales with cores (None if
            unknown or infinite), `is_input_bound`, and `waiting`, the share of the time that steps would wait at the measured rate
            if they take their lower bound.
        """
        needed_per_host = cost.records_per_second / cost.tpu.hosts
        is_finite = math.isfinite(needed_per_host)
        host_cores = None
        if self.cpu_seconds_per_record is not None and is_finite:
            host_cores = math.ceil(needed_per_host * self.cpu_seconds_per_record)
        return {
            "records_per_second": self.records_per_second,
            "measured_on_cores": self.cores,
            "needed": needed_per_host if is_finite else None,
            "host_cores": host_cores,
            "is_input_bound": self.records_per_second < needed_per_host,
            "waiting": max(0.0, 1 - self.records_per_second / needed_per_host),
        }

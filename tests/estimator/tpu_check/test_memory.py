"""The memory of a loop and of the next loop's batches."""

from typing import Any

from tests.devices.tpu_compiler.made import make_cost
from tpudata.estimator.tpu_check.memory import check_next_batches


def found(**changes: Any) -> list[tuple[str, bool]]:
    findings: list[tuple[str, bool]] = []

    def find(where: str, what: str, fix: str = "", *, is_rejected: bool = True) -> None:
        del where, fix
        findings.append((what, is_rejected))

    check_next_batches(make_cost(**changes), find)
    return findings


def test_counts_the_batches_of_the_next_loop() -> None:
    # 10 MiB of batches next to 15 GiB and 4 MiB, and 1 or 0 GiB of temporaries.
    assert found(arguments=15 * 2**30, temporaries=0) == []
    ((what, is_rejected),) = found(arguments=15 * 2**30)
    assert not is_rejected
    assert what == (
        "a loop of steps takes 16.00 GiB and the batches of the next one 10.0 MiB, and a device of v5e-16 has 16.00 GiB"
    )

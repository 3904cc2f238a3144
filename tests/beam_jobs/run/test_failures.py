"""Errors of runners, in one line.

Engines raise them when a machine or a disk fails, so tests construct the errors.
"""

from __future__ import annotations

from beam_jobs.run.failures import translate_failure

PANIC = (
    "Pipeline job-001 failed in state FAILED: panic in stage.Execute bundle processing goroutine: send on closed channel,"
    " stage: &{ID:stage-012 transforms:[WriteShards]},stackTrace:\ngoroutine 213 [running]:\nruntime/debug.Stack()\n"
    "\t/go/src/runtime/debug/stack.go:24 +0x5e\n"
)


def test_reports_a_prism_panic_as_a_lost_worker() -> None:
    error = translate_failure("PrismRunner", RuntimeError(PANIC), is_in_process=False)
    text = str(error)
    assert "a worker was lost (ended as FAILED: " in text
    assert text.endswith("Run again with --resume to convert the rest.")
    assert "goroutine 213" not in text
    assert "\n" not in text


def test_reports_memory_and_disk_failures_of_remote_workers() -> None:
    text = (
        'Pipeline job-001 failed in state FAILED: Traceback (most recent call last):\n  File "x.py", line 1, in y\n{}'
    )
    for raised, expected in (
        (
            "numpy._core._exceptions._ArrayMemoryError: Unable to allocate 9 GiB [while running 'WriteShards']",
            "where: memory ran out (numpy._core._exceptions._ArrayMemoryError: Unable to allocate 9 GiB). Use a machine with",
        ),
        ("MemoryError\n", "where: memory ran out (MemoryError). Use a machine with more memory; fewer --workers"),
        (
            "OSError: [Errno 5] Input/output error: '/data/x' [while running 'List']",
            "where: /data/x could not be used: Input/output error. The disk or the connection to it fails",
        ),
    ):
        said = str(
            translate_failure("FlinkRunner", RuntimeError(text.format(raised)), is_in_process=False, job="where")
        )
        assert said.startswith(expected)
        assert said.endswith(" Run again with --resume to convert the rest.")


def test_joins_an_error_of_several_lines() -> None:
    error = translate_failure("FlinkRunner", RuntimeError("a\nb"), is_in_process=False, job="job 1 (host:1)")
    assert str(error) == "job 1 (host:1): a b. Run again with --resume to convert the rest."

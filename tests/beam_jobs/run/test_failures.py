"""Errors of runners, in one line."""

from __future__ import annotations

from beam_jobs.run.failures import failure

PANIC = (
    "Pipeline job-001 failed in state FAILED: panic in stage.Execute bundle processing goroutine: send on closed channel,"
    " stage: &{ID:stage-012 transforms:[WriteShards]},stackTrace:\ngoroutine 213 [running]:\nruntime/debug.Stack()\n"
    "\t/go/src/runtime/debug/stack.go:24 +0x5e\n"
)


def test_a_worker_that_is_gone_while_prism_sends_to_it_is_a_lost_one() -> None:
    error = failure("PrismRunner", RuntimeError(PANIC), in_process=False)
    text = str(error)
    assert "a worker was lost (ended as FAILED: " in text
    assert text.endswith("Run again with --resume to convert the rest.")
    assert "goroutine 213" not in text
    assert "\n" not in text

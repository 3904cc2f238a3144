"""Errors of a runner, in one line."""

from __future__ import annotations

import re
import signal

from tpudata.console.flags import end_sentence
from tpudata.console.machine_errors import describe_machine_error, describe_machine_error_text
from tpudata.error_text.own import recover_own_error
from tpudata.errors import TpudataError

MANUAL = "https://beam.apache.org/documentation/runners/"
# Beam ends the message of an error that a step raised with the name of the step.
_IN_STEP = re.compile(r"\s*\[while running '?(?P<step>[^'\]]*).*", re.DOTALL)
# The last line of a traceback: an error and its message.
_ERROR_LINE = re.compile(r"(?:\w+\.)*\w*(?:Error|Exception|Exit|Warning)\b(?::.*)?")
# End of the traceback if a runner's workers are containers and docker is missing or does not start them.
_NO_DOCKER = re.compile(r"(FileNotFoundError: .*'docker'|CalledProcessError: Command '\['docker', .*)\s*$")
# How Prism, Beam's own job server, Dataflow, Spark and others report a worker that was killed.
_LOST_WORKER = re.compile(
    r"SDK worker disconnected|Channel closed prematurely|SDK harness.{0,40}(disconnected|died|exited)|worker lost contact"
    # Prism sends to the queue of a worker that has just ended.
    r"|send on closed channel|ExecutorLostFailure|lost task|out of memory|OutOfMemory",
    re.IGNORECASE,
)
# Final state of a job and its cause, as Dataflow's and portable results word them.
_FINAL_STATE = re.compile(
    r"(?:Dataflow pipeline failed\. State: |Pipeline \S+ failed in state )(?P<state>\w+)(?:, Error)?:\s*(?P<cause>.*)",
    re.DOTALL,
)
# Prism ends the report of a panic with its own state and its stack.
_GO_STACK = re.compile(r", stage: .*stackTrace:.*", re.DOTALL)
_RESUME_HINT = "Run again with --resume to convert the rest"


def is_interrupt(error: BaseException) -> bool:
    """Return whether an error of a runner is due to a Ctrl-C, which interrupted a step or ended a worker process."""
    text = str(error)
    return "KeyboardInterrupt" in text or f"exited with return code -{signal.SIGINT.value}" in text


def translate_failure(runner: str, error: Exception, *, is_in_process: bool, job: str = "") -> TpudataError | None:
    """Return the error that reports a failed run; None if Beam's own error, with its traceback, is of more use.

    Args:
        runner: class name of the runner.
        error: error that Beam raised.
        is_in_process: whether the runner works in this process.
        job: name of the submitted job, from `describe_job`; empty before it is submitted.

    Returns:
        The TpudataError that a step raised, without Beam's wrapping; if no step raised one, a new one that describes the failure.
    """
    own_cause = recover_own_error(error)
    if own_cause is not None:
        return own_cause
    # Some engines escape the line ends of a traceback.
    text = _GO_STACK.sub("", str(error).replace("\\n", "\n"))
    if problem := describe_machine_error(error) or describe_machine_error_text(text):
        return TpudataError(f"{job}: {problem} {_RESUME_HINT}." if job else problem)
    if _NO_DOCKER.search(text):
        return TpudataError(
            f"--runner={runner} runs its workers in docker, which did not start one here. Try `docker info`; or pass"
            " --environment_type=LOOPBACK to work in this process, or omit --runner to convert on this machine."
        )
    if is_in_process and ("Traceback" in text or "[while running" in text):
        return None
    reason = end_sentence(_find_reason(text) or f"{type(error).__name__} without a message")
    if _LOST_WORKER.search(text):
        return TpudataError(
            f"{job or f'the job of {runner}'}: a worker was lost ({reason.rstrip('.')}). If memory ran out, use larger or fewer"
            f" workers. {_RESUME_HINT}."
        )
    if job:
        return TpudataError(f"{job}: {reason} {_RESUME_HINT}.")
    return TpudataError(
        f"--runner={runner} could not run the job: {type(error).__name__}: {reason} See {MANUAL}, or omit --runner to convert on"
        " this machine."
    )


def _find_reason(text: str) -> str:
    """Return the reason in the message of an error, in one line.

    That is the last error of a traceback with its step, the final state of a job with its cause or, without either, the whole
    message.
    """
    final = _FINAL_STATE.fullmatch(text)
    if final is not None:
        # Without a cause, the runner prints Python's None.
        cause = _find_reason(final["cause"]) if final["cause"] != "None" else ""
        return f"ended as {final['state']}{f': {cause}' if cause else ''}"
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if _ERROR_LINE.match(line)] if "Traceback" in text else []
    reason = errors[-1] if errors else " ".join(lines)
    step = _IN_STEP.search(reason)
    return reason if step is None else f"{reason[: step.start()]} (in step {step['step']})"

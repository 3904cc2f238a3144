"""Errors of a runner, in one line."""

from __future__ import annotations

import re
import signal

from tpudata.console.flags import end_sentence
from tpudata.console.machine_errors import describe_machine_error, describe_machine_error_text
from tpudata.error_text.own import recover_own_error
from tpudata.errors import TpudataError

MANUAL = "https://beam.apache.org/documentation/runners/"
# Part of the text of an error that a step raised.
_RUNNING = re.compile(r"\s*\[while running '?(?P<step>[^'\]]*).*", re.DOTALL)
# The last line of a traceback.
_RAISED = re.compile(r"(?:\w+\.)*\w*(?:Error|Exception|Exit|Warning)\b(?::.*)?")
# End of the traceback if a runner's workers are containers and docker is missing or does not start them.
_NO_DOCKER = re.compile(r"(FileNotFoundError: .*'docker'|CalledProcessError: Command '\['docker', .*)\s*$")
# Prism, Beam's own job server, Dataflow, Spark and others of a worker that was killed.
_LOST_WORKER = re.compile(
    r"SDK worker disconnected|Channel closed prematurely|SDK harness.{0,40}(disconnected|died|exited)|worker lost contact"
    # Prism sends to the queue of a worker that has just ended.
    r"|send on closed channel|ExecutorLostFailure|lost task|out of memory|OutOfMemory",
    re.IGNORECASE,
)
# Final state of a job and its cause, as Dataflow's and portable results word them.
_ENDED = re.compile(
    r"(?:Dataflow pipeline failed\. State: (\w+), Error:|Pipeline \S+ failed in state (\w+):)\s*(.*)", re.DOTALL
)
# Prism ends the report of a panic with its own state and its stack.
_GO_STACK = re.compile(r", stage: .*stackTrace:.*", re.DOTALL)
_AGAIN = "Run again with --resume to convert the rest"


def is_interrupt(error: BaseException) -> bool:
    """Return whether a runner wrapped a Ctrl-C that met a step at work, or a worker that it ended."""
    text = str(error)
    return "KeyboardInterrupt" in text or f"exited with return code -{signal.SIGINT.value}" in text


def translate_failure(runner: str, error: Exception, *, in_process: bool, job: str = "") -> TpudataError | None:
    """Return the message that reports a failed run.

    Args:
        runner: the name of its class.
        error: error that Beam raised.
        in_process: whether the runner works in this process.
        job: identity of the submitted job and where to look at it; empty before it is submitted.

    Returns:
        The error of ours that a step raised, without Beam's wrapping, or a line on the runner. None if the traceback is of use.
    """
    own_cause = recover_own_error(error)
    if own_cause is not None:
        return own_cause
    text = _GO_STACK.sub("", str(error).replace("\\n", "\n"))
    if problem := describe_machine_error(error) or describe_machine_error_text(text):
        return TpudataError(f"{f'{job}: ' if job else ''}{problem}{f' {_AGAIN}.' if job else ''}")
    if _NO_DOCKER.search(text):
        return TpudataError(
            f"--runner={runner} runs its workers in docker, which did not start one here. Try `docker info`; or pass"
            " --environment_type=LOOPBACK to work in this process, or omit --runner to convert on this machine."
        )
    if in_process and ("Traceback" in text or "[while running" in text):
        return None
    reason = end_sentence(_find_reason(text) or f"{type(error).__name__} without a message")
    if _LOST_WORKER.search(text):
        return TpudataError(
            f"{job or f'the job of {runner}'}: a worker was lost ({reason.rstrip('.')}). If memory ran out, use larger or fewer"
            f" workers. {_AGAIN}."
        )
    if job:
        return TpudataError(f"{job}: {reason} {_AGAIN}.")
    return TpudataError(
        f"--runner={runner} could not run the job: {type(error).__name__}: {reason} See {MANUAL}, or omit --runner to convert on"
        " this machine."
    )


def _find_reason(text: str) -> str:
    """Return the last error of a traceback and its step, or a text without a traceback, in one line."""
    ended = _ENDED.fullmatch(text)
    if ended is not None:
        cause = _find_reason(ended[3]) if ended[3] != "None" else ""
        return f"ended as {ended[1] or ended[2]}{f': {cause}' if cause else ''}"
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    raised = [line for line in lines if _RAISED.match(line)] if "Traceback" in text else []
    reason = raised[-1] if raised else " ".join(lines)
    step = _RUNNING.search(reason)
    return reason if step is None else f"{reason[: step.start()]} (in step {step['step']})"

"""Starting a job on a runner, watching it to its end, and interrupting it."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.runner import PipelineResult, PipelineRunner

from beam_jobs.run.failures import is_interrupt, translate_failure
from beam_jobs.run.job import describe_job, identify_job, is_over
from beam_jobs.run.lifetime import ends_with_process
from beam_jobs.run.prism import start_prism
from beam_jobs.run.progress import job_progress
from beam_jobs.run.runner import is_in_process, quiet_beam
from tpudata.error_text.lines import one_line
from tpudata.errors import TpudataError

# Half of the 4 seconds in which an interrupted command ends.
_CANCEL_SECONDS = 2.0


def _ignore_line(line: str) -> None:
    del line


@dataclasses.dataclass(frozen=True)
class Launch:
    """Settings for starting and watching a job.

    Attributes:
        report: called with lines about the job: warnings, and for a job that may outlive this process its name, and whether it
            continues or was cancelled.
        draws_bar: whether a bar on stderr shows the job's progress.
        reports_counters: whether `report` is also called with the counters of a job that may outlive this process, without a bar.
        detach: whether to leave the job once it is submitted.
        runner: runner of a program's pipeline; None makes the runner that the options name.
        poll_seconds: seconds between two readings of the counters; None for 2 with a bar, and 60 for lines.
    """

    report: Callable[[str], None] = _ignore_line
    draws_bar: bool = False
    reports_counters: bool = False
    detach: bool = False
    runner: PipelineRunner | None = None
    poll_seconds: float | None = None


class JobRun:
    """One job from its start to its end, or until this process leaves it.

    Args:
        options: options of the pipeline.
        launch: settings for starting and watching it.
        save_identity: called with the identity of a job that may outlive this process.

    Attributes:
        launch: settings for starting and watching it.
        goes_on: whether a job that may outlive this process was submitted, and is not known to have ended.
    """

    def __init__(
        self, options: PipelineOptions, launch: Launch, save_identity: Callable[[Mapping[str, str]], None]
    ) -> None:
        self.goes_on = False
        self._ends_with_process = ends_with_process(options)
        self.launch = launch
        self._save_identity = save_identity

    def run(self, pipeline: beam.Pipeline) -> PipelineResult | None:
        """Run a pipeline to its end; with `detach` submit it, and return None.

        Raises:
            TpudataError: a step raised it, and Beam's wrapping is removed; or the runner could not run the pipeline.
            KeyboardInterrupt: Ctrl-C was pressed, or SIGTERM received. The job was cancelled if its engine can do that.
        """
        runner = type(pipeline.runner).__name__
        start_prism(pipeline.options)
        with quiet_beam():
            with _translate_failures(runner):
                result = pipeline.run()
            if self._ends_with_process:
                self._wait_here(result, runner)
                return result
            identity = identify_job(result, runner, pipeline.options)
            # True until the end of the job is known.
            self.goes_on = True
            try:
                return self._watch(result, runner, identity)
            except KeyboardInterrupt:
                self._cancel(result, describe_job(identity))
                raise

    def _watch(self, result: PipelineResult, runner: str, identity: Mapping[str, str]) -> PipelineResult | None:
        """Report a submitted job, save its identity, and wait for its end; return its result, or None immediately if detached."""
        launch, job = self.launch, describe_job(identity)
        launch.report(f"{job} is submitted{', and goes on without this process' if launch.detach else ''}")
        # The job runs even if its identity cannot be saved.
        with contextlib.suppress(TpudataError):
            self._save_identity(identity)
        if launch.detach:
            return None
        try:
            with (
                _translate_failures(runner, job, lambda: is_over(result)),
                job_progress(
                    result, launch.draws_bar, launch.report if launch.reports_counters else None, launch.poll_seconds
                ),
            ):
                result.wait_until_finish()
        except Exception:
            self.goes_on = not is_over(result)
            raise
        self.goes_on = False
        return result

    def _wait_here(self, result: PipelineResult, runner: str) -> None:
        """Wait for a job that ends with this process, and cancel it after a Ctrl-C."""
        try:
            with (
                _translate_failures(runner),
                job_progress(result, self.launch.draws_bar, poll_seconds=self.launch.poll_seconds),
            ):
                result.wait_until_finish()
        except KeyboardInterrupt:
            # Otherwise workers in other processes would continue for a while.
            with contextlib.suppress(Exception):
                result.cancel()
            raise

    def _cancel(self, result: PipelineResult, job: str) -> None:
        """Cancel a job and wait for its end, up to a time limit; report the outcome, even if cancelling fails."""
        # Reported first, since this process may be ended before the engine answers.
        self.launch.report(f"cancelling {job}")
        try:
            result.cancel()
        except Exception as error:
            self.launch.report(f"{job} was not cancelled and goes on: {one_line(error)}")
            return
        deadline = time.monotonic() + _CANCEL_SECONDS
        while not is_over(result) and time.monotonic() < deadline:
            time.sleep(0.2)
        self.goes_on = not is_over(result)
        state = "is ending" if self.goes_on else "has ended"
        self.launch.report(f"{job} {state}; run again with --resume to convert the rest")


@contextlib.contextmanager
def _translate_failures(runner: str, job: str = "", has_ended: Callable[[], bool] = lambda: True) -> Iterator[None]:
    """Translate errors of Beam as `translate_failure` does; raise KeyboardInterrupt for an error that an interrupt caused.

    Args:
        runner: class name of the runner.
        job: name of the submitted job, from `describe_job`; empty before it is submitted.
        has_ended: returns whether the job has ended, by default True, so that no error counts as a lost connection: only an error
            before the end does.
    """
    try:
        yield
    except Exception as error:
        if is_interrupt(error):
            raise KeyboardInterrupt from error
        if not has_ended():
            # Beam asserts that its thread that polls Dataflow did not fail, and the assertion's message explains nothing.
            cause = "" if isinstance(error, AssertionError) else one_line(error)
            reason = f" ({cause})" if cause else ""
            raise TpudataError(
                f"{job}: the connection was lost{reason}, and the job may go on. When it has ended, run again with --resume to"
                " convert the rest."
            ) from error
        translated = translate_failure(runner, error, is_in_process=is_in_process(runner), job=job)
        if translated is None:
            raise
        raise translated from error

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
from beam_jobs.run.job import is_over, job_identity, job_text
from beam_jobs.run.lifetime import ends_with_process
from beam_jobs.run.prism import start_prism
from beam_jobs.run.progress import job_progress
from beam_jobs.run.runner import is_in_process, quiet_beam
from tpudata.error_text.lines import one_line
from tpudata.errors import TpudataError

# A command that was interrupted ends within 4 seconds.
_CANCEL_SECONDS = 2.0


def _say_nothing(line: str) -> None:
    del line


@dataclasses.dataclass(frozen=True)
class Launch:
    """Start of a job.

    Attributes:
        report: gets lines on a job that outlives this process: its name, and what becomes of it.
        draws_bar: whether a bar on stderr shows the job's progress.
        counts: without a bar, whether `report` gets lines of what a job that outlives this process has done.
        detach: whether to leave the job once it is submitted.
        runner: runner of a program's pipeline; None makes the one that the options name.
        every_seconds: seconds between two looks at the counts; None for 2 with a bar, and 60 for lines.
    """

    report: Callable[[str], None] = _say_nothing
    draws_bar: bool = False
    counts: bool = False
    detach: bool = False
    runner: PipelineRunner | None = None
    every_seconds: float | None = None


class JobRun:
    """One job from its start to its end, or until this process leaves it.

    Args:
        options: options of the pipeline.
        launch: way in which it is started.
        submitted: gets the identity of a job that may outlive this process.

    Attributes:
        launch: way in which it is started.
        goes_on: whether the job was submitted and is not known to have ended.
    """

    def __init__(
        self, options: PipelineOptions, launch: Launch, submitted: Callable[[Mapping[str, str]], None]
    ) -> None:
        self.goes_on = False
        self._ends_with_process = ends_with_process(options)
        self.launch = launch
        self._submitted = submitted

    def run(self, pipeline: beam.Pipeline) -> PipelineResult | None:
        """Run a pipeline to its end; with `detach` submit it, and return None.

        Raises:
            TpudataError: what a step raised, without Beam's wrapping; or the runner could not run the pipeline.
            KeyboardInterrupt: Ctrl-C or SIGTERM came. The job was cancelled, if its engine takes that.
        """
        name = type(pipeline.runner).__name__
        start_prism(pipeline.options)
        with quiet_beam():
            with _translate_failures(name):
                result = pipeline.run()
            if self._ends_with_process:
                self._wait_here(result, name)
                return result
            job = job_identity(result, name, pipeline.options)
            self.goes_on = True
            try:
                return self._watch(result, name, job)
            except KeyboardInterrupt:
                self._cancel(result, job_text(job))
                raise

    def _watch(self, result: PipelineResult, name: str, job: Mapping[str, str]) -> PipelineResult | None:
        """Follow a submitted job until it ends; return None at once if it is detached."""
        launch, text = self.launch, job_text(job)
        launch.report(f"{text} is submitted{', and goes on without this process' if launch.detach else ''}")
        # The job works without it.
        with contextlib.suppress(TpudataError):
            self._submitted(job)
        if launch.detach:
            return None
        try:
            with (
                _translate_failures(name, text, lambda: is_over(result)),
                job_progress(result, launch.draws_bar, launch.report if launch.counts else None, launch.every_seconds),
            ):
                result.wait_until_finish()
        except Exception:
            self.goes_on = not is_over(result)
            raise
        self.goes_on = False
        return result

    def _wait_here(self, result: PipelineResult, name: str) -> None:
        """Wait for a job that ends with this process, and cancel it after a Ctrl-C."""
        try:
            with (
                _translate_failures(name),
                job_progress(result, self.launch.draws_bar, every_seconds=self.launch.every_seconds),
            ):
                result.wait_until_finish()
        except KeyboardInterrupt:
            # Workers in other processes would go on for a while.
            with contextlib.suppress(Exception):
                result.cancel()
            raise

    def _cancel(self, result: PipelineResult, job: str) -> None:
        """Cancel a job and wait for its end, up to a time limit; report the outcome, also if cancelling fails."""
        # The process may be ended before the engine answers.
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
        ends = "is ending" if self.goes_on else "has ended"
        self.launch.report(f"{job} {ends}; run again with --resume to convert the rest")


@contextlib.contextmanager
def _translate_failures(name: str, job: str = "", is_over: Callable[[], bool] = lambda: True) -> Iterator[None]:
    """Translate errors of Beam as `translate_failure` does, and raise an interrupt that it wrapped.

    Args:
        name: name of the runner.
        job: the submitted job, in words.
        is_over: whether the job has ended. An error before its end is a lost connection.
    """
    try:
        yield
    except Exception as error:
        if is_interrupt(error):
            raise KeyboardInterrupt from error
        if not is_over():
            # Beam asserts that the thread in which it looks at a job of Dataflow did not fail.
            text = "" if isinstance(error, AssertionError) else one_line(error)
            cause = f" ({text})" if text else ""
            raise TpudataError(
                f"{job}: the connection was lost{cause}, and the job may go on. When it has ended, run again with --resume to"
                " convert the rest."
            ) from error
        translated = translate_failure(name, error, in_process=is_in_process(name), job=job)
        if translated is None:
            raise
        raise translated from error

"""Worker processes of the local runner, which end with the run that started them.

Beam's own worker processes do not notice when the process that started them ends, and Beam waits forever for a worker that was
killed, or that connects after the run was given up. Here each worker holds a lifeline, and ends immediately when it is cut.
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator
from typing import Any

import grpc
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from apache_beam.runners.portability.fn_api_runner.worker_handlers import GrpcWorkerHandler, WorkerHandler
from apache_beam.runners.runner import PipelineResult
from apache_beam.transforms.environments import Environment, python_sdk_capabilities
from google.protobuf import json_format, text_format

from beam_jobs.run import worker
from tpudata.console.child_processes import make_child_environment
from tpudata.console.lifeline import Lifeline
from tpudata.errors import TpudataError

_URN = "tpudata:env:local_workers:v1"
# Time for a worker to finish before it is killed.
_STOP_SECONDS = 5.0
# Interval at which the requests to a worker that has ended are failed.
_FAIL_EVERY_SECONDS = 0.1


def end_workers() -> None:
    """End the worker processes of all runs of this process immediately. Safe to call from any thread."""
    for lifeline in tuple(_lifelines):
        lifeline.cut()


class LocalRunner(FnApiRunner):  # type: ignore[misc]
    """Beam's local runner with worker processes that end with the run, and with the process that started it."""

    def run_pipeline(self, pipeline: Any, options: PipelineOptions) -> PipelineResult:
        """Run a pipeline to its end."""
        lifeline = Lifeline()
        _lifelines.append(lifeline)
        self._default_environment = _WorkerEnvironment(lifeline.reader, python_sdk_capabilities())
        try:
            return super().run_pipeline(pipeline, options)
        finally:
            _lifelines.remove(lifeline)
            lifeline.close()


# The lifeline of each run in this process that uses a LocalRunner.
_lifelines: list[Lifeline] = []


@Environment.register_urn(_URN, bytes)
class _WorkerEnvironment(Environment):  # type: ignore[misc]
    """Environment in which steps run: a worker process that inherits a file descriptor, its lifeline."""

    def __init__(
        self, lifeline_descriptor: int, capabilities: Iterable[str] = (), artifacts: Iterable[Any] = ()
    ) -> None:
        super().__init__(capabilities, artifacts)
        self._lifeline_descriptor = lifeline_descriptor

    def to_runner_api_parameter(self, context: Any) -> tuple[str, bytes]:
        """Return the name of this kind of environment, and the payload from which `_LocalWorker` is made."""
        del context
        return _URN, str(self._lifeline_descriptor).encode()

    @staticmethod
    def from_runner_api_parameter(
        payload: bytes, capabilities: Iterable[str], artifacts: Iterable[Any], resource_hints: Any, context: Any
    ) -> _WorkerEnvironment:
        """Return the environment that `to_runner_api_parameter` described."""
        del resource_hints, context
        return _WorkerEnvironment(int(payload), capabilities, artifacts)


@WorkerHandler.register_environment(_URN, bytes)
class _LocalWorker(GrpcWorkerHandler):  # type: ignore[misc]
    """Handle of Beam's runner on one worker process."""

    def __init__(self, payload: bytes, state: Any, provision_info: Any, grpc_server: Any) -> None:
        super().__init__(state, provision_info, grpc_server)
        self._lifeline_descriptor = int(payload)
        self._is_stopping, self._is_connected = threading.Event(), threading.Event()
        # Beam calls `set_input` and `set_inputs` with the streams of a worker that connects. A stream that breaks off is reported
        # by `_watch` and `read_outputs`, and not by a traceback of the thread that reads it.
        set_input, self._set_inputs = self.control_conn.set_input, self.data_conn.set_inputs
        input_elements = self.data_conn.input_elements

        def connect(stream: Iterable[Any]) -> None:
            self._is_connected.set()
            set_input(_read_until_broken(stream))

        def read_outputs(*args: Any, **keywords: Any) -> Iterator[Any]:
            """Yield what the worker sends for a request; raise the worker's end in place of Beam's error for a closed channel."""
            try:
                yield from input_elements(*args, **keywords)
            except RuntimeError:
                # The channel closes before the process has ended.
                with contextlib.suppress(subprocess.TimeoutExpired):
                    raise self._describe_end(self._process.wait(_STOP_SECONDS)) from None
                raise

        self.control_conn.set_input = connect
        self.data_conn.set_inputs = lambda stream: self._set_inputs(_read_until_broken(stream))
        self.data_conn.input_elements = read_outputs

    def start_worker(self) -> None:
        """Start the process, which connects when it is ready."""
        environment = {
            **make_child_environment(),
            "WORKER_ID": self.worker_id,
            "CONTROL_API_SERVICE_DESCRIPTOR": text_format.MessageToString(self.control_api_service_descriptor()),
            "LOGGING_API_SERVICE_DESCRIPTOR": text_format.MessageToString(self.logging_api_service_descriptor()),
            "PIPELINE_OPTIONS": json_format.MessageToJson(self.provision_info.provision_info.pipeline_options),
        }
        self._process = subprocess.Popen(
            [sys.executable, "-m", worker.__name__, str(self._lifeline_descriptor)],
            env=environment,
            stdin=subprocess.DEVNULL,
            # Beam prints tracebacks there, which this process raises and shows anyway.
            stderr=subprocess.DEVNULL,
            pass_fds=[self._lifeline_descriptor],
        )
        threading.Thread(target=self._watch, name=f"tpudata-{self.worker_id}", daemon=True).start()

    def stop_worker(self) -> None:
        """Wait until the process has ended; kill it after a time limit, or immediately if it has not connected yet."""
        self._is_stopping.set()
        if not self._is_connected.is_set():
            self._process.kill()
        try:
            self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _watch(self) -> None:
        """Wait for the process, and fail its pending requests if it ends early: Beam would wait for their answers forever."""
        error = self._describe_end(self._process.wait())
        if not self._is_connected.is_set():
            # An empty stream closes the channel for outputs, as the stream of a connected worker does when it breaks off.
            self._set_inputs(iter(()))
        # Repeated, so that requests that are still to come also fail.
        while not self._is_stopping.wait(_FAIL_EVERY_SECONDS):
            # RuntimeError: another thread added a request during the loop over them; the next round finds it.
            with contextlib.suppress(RuntimeError):
                self.control_conn.abort(error)

    def _describe_end(self, code: int) -> TpudataError:
        """Return the error of a process that ended early with this return code."""
        outcome = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with the exit code {code}"
        return TpudataError(
            f"worker process {self._process.pid} {outcome}. If memory ran out, use fewer --workers; run again with --resume to"
            " convert the rest."
        )


def _read_until_broken(stream: Iterable[Any]) -> Iterator[Any]:
    """Yield the messages of a stream; end without an error if the stream breaks off."""
    with contextlib.suppress(grpc.RpcError):
        yield from stream

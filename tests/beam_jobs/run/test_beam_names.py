"""Private names of Beam: if Beam renames one, these tests say which module uses it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.portability.fn_api_runner.worker_handlers import ControlConnection
from apache_beam.runners.portability.portable_runner import PipelineResult
from apache_beam.runners.worker.data_plane import GrpcClientDataChannel

from beam_jobs.run.job import identify_job
from beam_jobs.run.runner import beam_flag_names


def test_job_identity_has_the_id_of_a_portable_job() -> None:
    result = PipelineResult(SimpleNamespace(), "job-7", iter(()), iter(()))
    found = identify_job(result, "PortableRunner", PipelineOptions([]))
    assert found["id"] == "job-7", "beam_jobs/run/job.py reads PipelineResult._job_id, which Beam has renamed"


def test_option_classes_of_beam_declare_their_flags() -> None:
    classes = [one for one in PipelineOptions.__subclasses__() if "_add_argparse_args" in vars(one)]
    assert len(classes) > 10, "beam_jobs/run/runner.py calls PipelineOptions._add_argparse_args, which Beam has renamed"
    assert {"--runner", "--job_endpoint", "--region"} <= set(beam_flag_names())


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (ControlConnection, "set_input"),
        (ControlConnection, "abort"),
        (GrpcClientDataChannel, "set_inputs"),
        (GrpcClientDataChannel, "input_elements"),
    ],
)
def test_beam_connections_have_the_methods_that_local_workers_use(owner: Any, name: str) -> None:
    assert callable(getattr(owner, name, None)), f"beam_jobs/run/local_workers.py uses {owner.__name__}.{name}"

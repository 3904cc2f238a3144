"""Beam and what a conversion imports, without their warnings: what tests/helpers/forked.py forks from."""

import contextlib

from tpudata.console.quiet import quiet_beam_loading

with quiet_beam_loading():
    from google.cloud import storage  # noqa: F401

    import beam_jobs.conversion_run  # noqa: F401

    with contextlib.suppress(ImportError):  # It needs the [gcp] extra.
        import apache_beam.runners.dataflow.dataflow_runner  # noqa: F401

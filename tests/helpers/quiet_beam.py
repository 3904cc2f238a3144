"""Beam and what a conversion imports, without their warnings: what tests/helpers/forked.py forks from."""

import contextlib
import logging

from tpudata.console.quiet import quiet_beam_loading

with quiet_beam_loading():
    from google.cloud import storage  # noqa: F401

    import beam_jobs.conversion_run  # noqa: F401

    with contextlib.suppress(ImportError):  # It needs the [gcp] extra.
        import apache_beam.runners.dataflow.dataflow_runner  # noqa: F401

# Programs begin without a handler of the root logger; Beam adds one if it warns as it is imported, as without the [gcp] extra.
logging.root.handlers.clear()

"""Beam and what a conversion imports, without their warnings: what tests/helpers/forked.py forks from."""

from tpudata.console.quiet import quiet_beam_loading

with quiet_beam_loading():
    import apache_beam  # noqa: F401
    import google.cloud.storage  # noqa: F401
    import pyarrow  # noqa: F401

    import beam_jobs.conversion_run  # noqa: F401

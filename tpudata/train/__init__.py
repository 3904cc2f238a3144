"""The training entry point: the job that `tpudata train` and `python -m tpudata.train` run."""

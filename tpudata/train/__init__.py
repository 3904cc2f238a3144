"""The training entry point, which `tpudata train` and `python -m tpudata.train` run."""

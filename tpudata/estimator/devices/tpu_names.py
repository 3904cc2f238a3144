"""The names that a program gives to its TPU: there is only this machine's."""

from tpudata.estimator.config.run_config import RunConfig


def check_names(config: RunConfig) -> None:
    """Check that a config names the TPU of this machine.

    Raises:
        TPUConnectionError: it names another one.
    """

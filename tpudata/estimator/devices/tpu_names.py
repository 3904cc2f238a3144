"""The names that a program gives to its TPU: there is only this machine's."""

import os

from tpudata.estimator.api.errors import TPUConnectionError
from tpudata.estimator.config.run_config import RunConfig

_LOCAL = ("", "local")


def check_names(config: RunConfig) -> None:
    """Check that a config names the TPU of this machine: no name, "local", or that of the environment variable TPU_NAME.

    Raises:
        TPUConnectionError: it names another one.
    """
    own = os.environ.get("TPU_NAME", "")
    names = {"master": config.master, "tpu_name": config.tpu_name}
    if config.cluster is not None:
        names = {"cluster": config.cluster.master()}
    for argument, name in names.items():
        if (name or "") in (*_LOCAL, own) and "://" not in (name or ""):
            continue
        shown = name if argument == "tpu_name" else config.tpu_name or own or "NAME"
        raise TPUConnectionError(
            f"RunConfig({argument}=...): programs run on the machine of their TPU (got {name!r}, expected 'local' or nothing). "
            f"Omit it, and start the program there: gcloud compute tpus tpu-vm ssh {shown} --worker=all --command='...'"
        )

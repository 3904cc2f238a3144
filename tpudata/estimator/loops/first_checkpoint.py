"""The checkpoint with which a call begins."""

import logging

from tpudata.devices.errors import ClusterError
from tpudata.estimator.api.errors import CheckpointError
from tpudata.estimator.loops.runtime import Runtime
from tpudata.estimator.state import checkpoints
from tpudata.estimator.state.checkpoint import Checkpoint

_log = logging.getLogger("tpudata")


def first_checkpoint(runtime: Runtime) -> Checkpoint | None:
    """Return the chief's newest checkpoint, with which training begins, or None.

    Raises:
        ClusterError: this process does not find the chief's checkpoint in its model_dir.
    """
    peers = runtime.peers
    own = checkpoints.latest(runtime.model_dir) if peers.is_chief else None
    if peers.count == 1:
        return own
    data = peers.chiefs_bytes(b"" if own is None else own.to_bytes())
    if own is not None or not data:
        return own
    wanted = Checkpoint.from_bytes(data)
    try:
        found = Checkpoint.open(wanted.prefix)
    except CheckpointError:
        found = None
    if found != wanted:
        raise ClusterError(
            f"{runtime.model_dir}: the chief begins with {wanted.prefix}, which is "
            f"{'missing' if found is None else 'different'} for this process (expected one folder for all processes). Put "
            "model_dir on a storage that all machines share."
        )
    return found


def given_or_newest(runtime: Runtime, checkpoint_path: str | None) -> Checkpoint | None:
    """Return the checkpoint at `checkpoint_path`, or the newest of model_dir, or None if there is none yet.

    Raises:
        CheckpointError: there is no checkpoint at the given path.
    """
    if checkpoint_path is not None:
        return Checkpoint.open(str(checkpoint_path))
    newest = checkpoints.latest(runtime.model_dir)
    if newest is None:
        _log.warning("There is no checkpoint in %s: using initial values.", runtime.model_dir)
    return newest

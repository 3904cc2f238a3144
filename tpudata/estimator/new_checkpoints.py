"""Evaluation of the checkpoints that another process writes, as they appear."""

import logging
import math
import time
from collections.abc import Callable

import tensorflow as tf

from tpudata.estimator.api.errors import CheckpointError
from tpudata.estimator.state import checkpoints

_log = logging.getLogger("tpudata")
_POLL_SECONDS = 1.0


def evaluate_new_checkpoints(
    model_dir: str,
    evaluate: Callable[[str], bool],
    *,
    newest_only: bool = False,
    throttle_secs: float = 0.0,
    timeout: float = math.inf,
) -> bool:
    """Evaluate checkpoints of a folder, by default each once and the oldest first, until one is the last or no new one appears.

    A checkpoint that training removes before it is evaluated is skipped.

    Args:
        model_dir: the folder.
        evaluate: function that evaluates the checkpoint at a path, and returns whether it is the last one.
        newest_only: whether to evaluate only the newest checkpoint each time, and skip the older ones. A checkpoint is then
            evaluated again if it is the newest again after another one.
        throttle_secs: minimum number of seconds between the starts of two evaluations.
        timeout: number of seconds to wait for a new checkpoint.

    Returns:
        Whether the last checkpoint was evaluated; False after `timeout` seconds without a new one.

    Raises:
        CheckpointError: a checkpoint cannot be read, or the folder's list of checkpoints is damaged.
        StorageError: the folder's list cannot be read.
    """
    find_next = _find_newest if newest_only else _find_oldest
    # Look at the folder at least as often as the shortest time that the caller passes.
    poll_seconds = min(_POLL_SECONDS, timeout, throttle_secs or _POLL_SECONDS)
    waiting_text = "Waiting" if math.isinf(timeout) else f"Waiting up to {timeout:g} seconds"
    evaluated_paths: set[str] = set()
    waiting_since = time.monotonic()
    has_logged_wait = False
    while True:
        path = find_next(model_dir, evaluated_paths)
        if path is None:
            if time.monotonic() - waiting_since >= timeout:
                return False
            if not has_logged_wait:
                _log.info("%s for a checkpoint in %s.", waiting_text, model_dir)
            has_logged_wait = True
            time.sleep(poll_seconds)
            continue
        # The newest checkpoint may be an evaluated one again, if training starts again from there.
        evaluated_paths = {path} if newest_only else {*evaluated_paths, path}
        start_time = time.monotonic()
        try:
            if evaluate(path):
                return True
        except CheckpointError:
            if _checkpoint_exists(path):
                raise
            _log.info("%s was removed before it could be evaluated.", path)
        else:
            time.sleep(max(0.0, start_time + throttle_secs - time.monotonic()))
        waiting_since = time.monotonic()
        has_logged_wait = False


def _find_newest(model_dir: str, evaluated_paths: set[str]) -> str | None:
    """Return the path of the newest checkpoint; None if there is none, or if it is among `evaluated_paths`."""
    newest = checkpoints.find_latest(model_dir)
    return None if newest is None or newest.prefix in evaluated_paths else newest.prefix


def _find_oldest(model_dir: str, evaluated_paths: set[str]) -> str | None:
    """Return the path of the oldest checkpoint that is not among `evaluated_paths`; None if there is none."""
    new_paths = (path for path in checkpoints.list_recorded(model_dir) if path not in evaluated_paths)
    # Training may have removed an old checkpoint by now.
    return next((path for path in new_paths if _checkpoint_exists(path)), None)


def _checkpoint_exists(path: str) -> bool:
    return bool(tf.io.gfile.exists(f"{path}.index"))

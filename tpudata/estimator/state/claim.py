"""The claim of a training on its model_dir, so that a second training there ends with an error."""

import contextlib
import contextvars
import logging
from collections.abc import Iterator

from tpudata.error_text.lines import one_line
from tpudata.errors import StorageError
from tpudata.storage.claims.claim import PROCESS, Claim, claim_path
from tpudata.storage.claims.hold import check_not_taken_over, hold_claim
from tpudata.storage.claims.liveness import DEAD_AFTER_SECONDS

_log = logging.getLogger("tpudata")
# Folders that a caller in this thread has claimed for the trainings that it starts.
_CLAIMED: contextvars.ContextVar[frozenset[str]] = contextvars.ContextVar("claimed_model_dirs", default=frozenset())


def check_model_dir(model_dir: str) -> None:
    """Raise OutputError if another training has taken over model_dir; skip the check if the storage does not answer."""
    with contextlib.suppress(StorageError):
        check_not_taken_over(model_dir)


@contextlib.contextmanager
def claim_model_dir(
    model_dir: str, *, shares_with_trainings: bool = False, dead_after: float = DEAD_AFTER_SECONDS
) -> Iterator[None]:
    """Claim model_dir inside the context, unless a caller in this thread has claimed it for its trainings.

    The claim of a dead process is taken over, immediately if it ran on this machine, or after `dead_after` seconds without activity
    if it ran on another one. If tpudata cannot write to model_dir, a warning says that the training holds no claim: TensorFlow may
    be able to write there.

    Args:
        model_dir: the folder.
        shares_with_trainings: whether trainings that this thread starts inside the context use this claim.
        dead_after: seconds without activity after which a claim from another machine counts as dead.

    Raises:
        OutputError: another training runs in model_dir.
    """
    claimed_dirs = _CLAIMED.get()
    if model_dir in claimed_dirs:
        yield
        return
    with contextlib.ExitStack() as stack:
        try:
            fix = (
                "Two trainings in one model_dir overwrite each other's checkpoints. Wait until it has ended, or end it; or use "
                f"another model_dir. If that machine is gone for good, remove {claim_path(model_dir)}."
            )
            stack.enter_context(hold_claim(model_dir, Claim.new(PROCESS), fix=fix, dead_after=dead_after))
        except StorageError as error:
            _log.warning(
                "%s: this training holds no claim on its model_dir, so a second one there would not be noticed, and both would mix "
                "their checkpoints: %s.",
                model_dir,
                one_line(error),
            )
        token = _CLAIMED.set(claimed_dirs | {model_dir} if shares_with_trainings else claimed_dirs)
        try:
            yield
        finally:
            _CLAIMED.reset(token)

"""The claim of a training on its model_dir: of two that would write there, the second ends with an error."""

import contextlib
import logging
from collections.abc import Iterator

from tpudata.errors import StorageError
from tpudata.storage.claims.claim import PROCESS, Claim, claim_path
from tpudata.storage.claims.hold import check_own, claimed

_log = logging.getLogger("tpudata")


def check_model_dir(model_dir: str) -> None:
    """Raise OutputError if another training has taken model_dir over; a store that does not answer is asked the next time."""
    with contextlib.suppress(StorageError):
        check_own(model_dir)


@contextlib.contextmanager
def claimed_model_dir(model_dir: str) -> Iterator[None]:
    """Hold a claim on model_dir while the context lasts.

    The claim of a process of this machine that is dead is taken over at once, that of another machine once it stood still for a
    minute. Where tpudata stores nothing, or may not write, nothing is claimed: what cannot be written says so itself.

    Raises:
        OutputError: another training is at work there.
    """
    with contextlib.ExitStack() as stack:
        try:
            fix = (
                "Two trainings in one model_dir overwrite each other's checkpoints. Wait until it has ended, or end it; or use "
                f"another model_dir. If that machine is gone for good, remove {claim_path(model_dir)}."
            )
            stack.enter_context(claimed(model_dir, Claim.new(PROCESS), fix=fix))
        except StorageError as error:
            _log.debug("%s is not claimed: %s", model_dir, error)
        yield

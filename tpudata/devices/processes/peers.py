"""The processes that train one model together, and what they agree on between two loops of the device."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager

from tpudata.tensor_types import Tensors

# Made once, since each loop enters it, and making it takes as long as entering it.
_NO_WAIT = contextlib.nullcontext()


class Peers:
    """The processes of a run. This class is for a run of a single process, and the base for several.

    Methods say what they do for several processes, as `ClusterPeers` overrides them; a single process gets its own values back, and
    the contexts do nothing.

    Attributes:
        index: index of this process, from 0; 0 is the chief.
        count: number of processes.
    """

    index: int = 0
    count: int = 1

    @property
    def is_chief(self) -> bool:
        """Whether this process decides for all, and writes to model_dir."""
        return self.index == 0

    def sum_numbers(self, numbers: Sequence[int]) -> list[int]:
        """Return the sums of the numbers over the processes; every process must call this."""
        return list(numbers)

    def min_numbers(self, numbers: Sequence[int]) -> list[int]:
        """Return the minimum of each number over the processes; every process must call this."""
        return list(numbers)

    def any(self, flag: bool) -> bool:
        """Return whether the flag is set in any process; every process must call this."""
        return bool(self.sum_numbers([int(flag)])[0])

    def broadcast_number(self, number: int) -> int:
        """Return the chief's number in every process; every process must call this."""
        return self.sum_numbers([number if self.is_chief else 0])[0]

    def broadcast_bytes(self, data: bytes) -> bytes:
        """Return the chief's bytes in every process; every process must call this."""
        return data

    def broadcast_values(self, values: Mapping[str, Tensors]) -> dict[str, Tensors]:
        """Return the chief's values of tensors in every process; names, shapes and dtypes must be equal in all processes."""
        return dict(values)

    @contextlib.contextmanager
    def translate_errors(self) -> Iterator[None]:
        """Translate errors that the end of another process caused into a ClusterError."""
        yield

    def limit_wait(self) -> AbstractContextManager[None]:
        """End this process if code inside waits for devices after another process has ended: the wait may never end."""
        return _NO_WAIT

"""The processes that train one model together, and what they agree on between two loops of the device."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

# Entered before each loop: making one takes as long as entering it.
_NO_WAIT = contextlib.nullcontext()


class Peers:
    """The processes of a training in one process: itself.

    Attributes:
        index: number of this process, from 0; 0 is the chief.
        count: number of processes.
    """

    index: int = 0
    count: int = 1

    @property
    def is_chief(self) -> bool:
        """Whether this process decides for all, and writes to model_dir."""
        return self.index == 0

    def sum_numbers(self, numbers: Sequence[int]) -> list[int]:
        """Return the sums of the numbers over the processes, each of which must call this."""
        return list(numbers)

    def least(self, numbers: Sequence[int]) -> list[int]:
        """Return the least of each of the numbers over the processes, each of which must call this."""
        return list(numbers)

    def any(self, flag: bool) -> bool:
        """Return whether the flag is set in any process."""
        return bool(self.sum_numbers([int(flag)])[0])

    def chiefs(self, number: int) -> int:
        """Return the chief's number."""
        return self.sum_numbers([number if self.is_chief else 0])[0]

    def chiefs_bytes(self, data: bytes) -> bytes:
        """Return the chief's bytes."""
        return data

    def chiefs_values(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the chief's values of tensors, of the same shapes and dtypes everywhere."""
        return dict(values)

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Raise errors that follow from the end of another process as a ClusterError."""
        yield

    def waiting(self) -> AbstractContextManager[None]:
        """Wait for the devices inside this: after the end of another process, which they would wait for, this one ends, too."""
        return _NO_WAIT

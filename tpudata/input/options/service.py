"""Cluster of a tf.data service that prepares the batches."""

from __future__ import annotations

import dataclasses
import re

from tpudata.checks import is_integer, is_number
from tpudata.errors import UsageError

_MOST_SECONDS = 1_000_000
_ADDRESS = re.compile(r"grpc://[^\s/]+:\d+")


@dataclasses.dataclass(frozen=True)
class DataService:
    """Cluster of a tf.data service that reads, decodes and batches in place of this process.

    The dispatcher needs the list of its workers (`DispatcherConfig(worker_addresses=...)`), and every worker the same paths as
    this process. docs/feed/many_hosts.md has the commands.

    Attributes:
        address: address of the dispatcher, "grpc://HOST:PORT".
        workers: number of workers that share each host's part of a batch. The batches are the same with any number.
        compress: whether batches are compressed on their way from the workers.
        timeout_seconds: seconds to wait for workers that have not registered, and for the next batch of a worker; then the dataset
            ends with an error.

    Raises:
        UsageError: an attribute is out of range or of another type.
    """

    address: str
    workers: int = 1
    compress: bool = False
    timeout_seconds: float = 300.0

    def __post_init__(self) -> None:
        if not isinstance(self.address, str) or _ADDRESS.fullmatch(self.address) is None:
            raise UsageError(
                f'DataService: address is {self.address!r}, expected "grpc://HOST:PORT". Pass the dispatcher\'s.'
            )
        if not is_integer(self.workers, 1):
            raise UsageError(
                f"DataService: workers is {self.workers!r}, expected an integer of 1 or more. Pass the number of workers."
            )
        if not isinstance(self.compress, bool):
            raise UsageError(f"DataService: compress is {self.compress!r}, expected True or False.")
        seconds: object = self.timeout_seconds
        if not is_number(seconds) or not 0 < self.timeout_seconds < _MOST_SECONDS:
            raise UsageError(
                f"DataService: timeout_seconds is {seconds!r}, expected a positive number of seconds, less than {_MOST_SECONDS:,}. "
                "Pass the time after which a worker counts as lost."
            )

"""Cluster of a tf.data service that prepares the batches."""

from __future__ import annotations

import dataclasses
import re

from tpudata.checks import check, check_flag, check_integer, convert_integers, is_number

# 11 days: far less than the 3 years after which the ticks of `limit_waits`, 20 a second, would leave int32.
_MAX_SECONDS = 1_000_000
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
        UsageError: an attribute is out of range or of the wrong type.
    """

    address: str
    workers: int = 1
    compress: bool = False
    timeout_seconds: float = 300.0

    def __post_init__(self) -> None:
        is_address = isinstance(self.address, str) and _ADDRESS.fullmatch(self.address) is not None
        check("DataService.address", self.address, is_address, '"grpc://HOST:PORT"', "Pass the dispatcher's.")
        check_integer("DataService.workers", self.workers, 1)
        convert_integers(self, "workers")
        check_flag("DataService.compress", self.compress)
        check(
            "DataService.timeout_seconds",
            self.timeout_seconds,
            is_number(self.timeout_seconds) and 0 < self.timeout_seconds < _MAX_SECONDS,
            f"a positive number of seconds, less than {_MAX_SECONDS:,}",
            "Pass the time after which a worker counts as lost.",
        )

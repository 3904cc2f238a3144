"""Copies of variables on the host, and whether the devices have newer values."""

from collections.abc import Iterable
from typing import Protocol


class HostCopies(Protocol):
    """Variables whose `tf.Variable`s on the host may be copies of values on devices."""

    def copy_to_host(self, names: Iterable[str]) -> None:
        """Copy the devices' values of variables to the host, if they are newer."""

    def mark_changed_on_host(self, names: Iterable[str]) -> None:
        """Discard the devices' values of variables that the host has written to; call `copy_to_host` before the write."""


class OnlyOnHost:
    """Variables that exist only on the host."""

    def copy_to_host(self, names: Iterable[str]) -> None:
        """Do nothing, since the host has the only values."""

    def mark_changed_on_host(self, names: Iterable[str]) -> None:
        """Do nothing, since the host has the only values."""

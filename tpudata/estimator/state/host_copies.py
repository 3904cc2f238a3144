"""Copies of variables on the host, and whether the devices have newer values."""

from collections.abc import Iterable
from typing import Protocol


class HostCopies(Protocol):
    """Variables whose `tf.Variable`s on the host may be copies of values on devices."""

    def copy_to_host(self, names: Iterable[str]) -> None:
        """Update the values of variables on the host."""

    def mark_changed_on_host(self, names: Iterable[str]) -> None:
        """Note that the host has written to variables, after `copy_to_host` of them."""


class OnlyOnHost:
    """Variables that have no other copies."""

    def copy_to_host(self, names: Iterable[str]) -> None:
        """Do nothing."""

    def mark_changed_on_host(self, names: Iterable[str]) -> None:
        """Do nothing."""

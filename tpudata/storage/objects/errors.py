"""Failures of single requests to an object store. The layer above retries them, or turns them into a StorageError with a path."""

from __future__ import annotations


class StoreError(Exception):
    """A request failed."""


class UnprovenError(StoreError):
    """An answer lacks proof (see `checked_storage`): it may be incomplete, or not the store's."""


class DamagedError(StoreError):
    """The store received damaged data, and keeps no object of it."""


class TimeLimitError(StoreError):
    """A call kept failing until the limit of its retries; the cause is its last failure."""


class AnswerError(StoreError):
    """The store answered that it did not do what was requested.

    Attributes:
        code: status code of HTTP, also of stores that do not speak it.
        message: the reason, in the store's own words if it gave any.
        is_described: whether the answer has the form of the store's errors, so that no proxy has sent it.

    Args:
        code: status code of HTTP.
        message: the reason.
        is_described: whether the answer has the form of the store's errors.
    """

    def __init__(self, code: int, message: str, *, is_described: bool = False) -> None:
        super().__init__(f"{code} {message}")
        self.code = code
        self.message = message
        self.is_described = is_described


class AbsentError(AnswerError):
    """The object does not exist."""


class ConflictError(AnswerError):
    """The object is not the expected version."""


class RangeError(AnswerError):
    """The range begins at or after the end of the object."""


class ReplacedError(AbsentError):
    """The version of an object that is being read no longer exists."""


class UploadLostError(StoreError):
    """The store lost a part that it had confirmed, or the upload."""

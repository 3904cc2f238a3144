"""Retries of requests to Google Cloud Storage: the policy, and the errors that are transient."""

from __future__ import annotations

import dataclasses
import math
import os

import requests
import urllib3
from google.api_core import exceptions as api
from google.auth.exceptions import GoogleAuthError, TransportError

from tpudata.errors import UsageError

RETRY = "TPUDATA_GCS_RETRY"
_TRANSIENT_CODES = frozenset((408, 429, 500, 502, 503, 504))
_TRANSIENT = (
    requests.ConnectionError,
    requests.Timeout,
    requests.exceptions.ChunkedEncodingError,
    requests.exceptions.ContentDecodingError,
    urllib3.exceptions.ProtocolError,
    urllib3.exceptions.TimeoutError,
    ConnectionError,
)


class DamagedError(Exception):
    """The store received damaged data and made no object of them."""


class UnprovenError(Exception):
    """An answer that may be incomplete or not the store's; see `answers`."""


@dataclasses.dataclass(frozen=True)
class RetryPolicy:
    """Exponential backoff of requests that fail.

    Attributes:
        first_wait: mean seconds before the second attempt; each wait is drawn at random around twice the one before.
        longest_wait: seconds that a wait takes at most.
        limit: seconds after which there is no further attempt.
        answer_within: seconds that the server may be silent.
    """

    first_wait: float = 0.25
    longest_wait: float = 20.0
    limit: float = 180.0
    answer_within: float = 60.0

    def with_limit(self, limit: float) -> RetryPolicy:
        """Return the policy with another limit, in seconds."""
        return dataclasses.replace(self, limit=limit)

    @classmethod
    def from_environment(cls) -> RetryPolicy:
        """Return the policy that TPUDATA_GCS_RETRY sets, such as `first_wait=0.1,limit=600`; other values are the defaults.

        Raises:
            UsageError: the variable is not of this form.
        """
        text = os.environ.get(RETRY, "")
        values = {}
        names = [field.name for field in dataclasses.fields(cls)]
        for part in filter(None, (part.strip() for part in text.split(","))):
            name, _, value = part.partition("=")
            try:
                values[name] = float(value)
                if name not in names or not 0 < values[name] < math.inf:
                    raise ValueError(part)
            except ValueError:
                raise UsageError(
                    f"{RETRY}: unknown setting (got {part!r}, expected NAME=SECONDS of {', '.join(names)}). Correct or unset it."
                ) from None
        return cls(**values)


def is_transient(error: BaseException) -> bool:
    """Return whether the same request may succeed later."""
    if isinstance(error, api.GoogleAPICallError):
        return error.code in _TRANSIENT_CODES
    if isinstance(error, GoogleAuthError):
        # A request for a token that got no answer is none of those that google-auth calls retryable.
        is_lost = isinstance(error, TransportError) and error.__cause__ is not None and is_transient(error.__cause__)
        return is_lost or bool(error.retryable)
    if isinstance(error, (requests.exceptions.SSLError, urllib3.exceptions.SSLError)):
        # A wrong certificate stays wrong; a broken connection may work again.
        return "CERTIFICATE" not in str(error).upper()
    return isinstance(error, (DamagedError, UnprovenError, *_TRANSIENT))


def sets_limit() -> bool:
    """Return whether TPUDATA_GCS_RETRY sets the limit of retries."""
    return "limit" in os.environ.get(RETRY, "")

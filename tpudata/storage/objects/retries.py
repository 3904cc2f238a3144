"""Retries of failing calls to a store: exponential backoff until a limit."""

from __future__ import annotations

import dataclasses
import logging
import math
import random
import time
from collections.abc import Callable
from typing import TypeVar

from tpudata.errors import UsageError
from tpudata.storage.objects.errors import AnswerError, TimeLimitError

T = TypeVar("T")
_log = logging.getLogger("tpudata")


@dataclasses.dataclass(frozen=True)
class RetryPolicy:
    """Exponential backoff of requests that fail.

    Attributes:
        first_wait: mean seconds before the second attempt; the mean doubles with each attempt, and a wait is uniform
            between 0 and twice its mean.
        longest_wait: maximum seconds of a wait.
        limit: seconds after which there are no more attempts.
        answer_within: seconds that the server may be silent.
        warn_after: seconds after which failures are logged as warnings, and between two warnings.
    """

    first_wait: float = 0.25
    longest_wait: float = 20.0
    limit: float = 180.0
    answer_within: float = 60.0
    warn_after: float = 10.0

    def replace_limit(self, limit: float) -> RetryPolicy:
        """Return the policy with another limit, in seconds."""
        return dataclasses.replace(self, limit=limit)

    @classmethod
    def parse(cls, settings: str, variable: str) -> RetryPolicy:
        """Return the policy for settings such as `first_wait=0.1,limit=600`; settings that are not named keep their defaults.

        Args:
            settings: the settings, separated by commas; may be empty.
            variable: name of the environment variable that holds the settings, for messages.

        Raises:
            UsageError: a setting is not of this form, or has an unknown name or a value that is not a finite number above 0.
        """
        values = {}
        names = [field.name for field in dataclasses.fields(cls)]
        for setting in filter(None, (part.strip() for part in settings.split(","))):
            name, _, value = setting.partition("=")
            try:
                values[name] = float(value)
                if name not in names or not 0 < values[name] < math.inf:
                    raise ValueError(setting)
            except ValueError:
                raise UsageError(
                    f"{variable}: unknown setting (got {setting!r}, expected NAME=SECONDS of {', '.join(names)}). Correct or unset"
                    " it."
                ) from None
        return cls(**values)


class Retries:
    """Retries of the calls to one store; safe to share between threads.

    Args:
        store: name of the store, for the log.
        get_policy: returns the current policy.
        is_transient: returns whether the same call may succeed later.
    """

    def __init__(
        self, store: str, get_policy: Callable[[], RetryPolicy], is_transient: Callable[[Exception], bool]
    ) -> None:
        self._store = store
        self._get_policy = get_policy
        self._is_transient = is_transient
        self._warned_at = -math.inf

    def run(self, call: Callable[[], T]) -> T:
        """Return the result of `call`, which is called again after each transient failure.

        Raises:
            TimeLimitError: the call kept failing, and the next attempt would be after the policy's limit.
        """
        policy = self._get_policy()
        began_at = time.monotonic()
        mean_wait = policy.first_wait
        while True:
            try:
                return call()
            except Exception as error:
                if not self._is_transient(error):
                    raise
                failed_at = time.monotonic()
                self._log_failure(error, failed_at, failed_at - began_at, policy)
                # Random waits: many clients that fail together must not retry together.
                wait = random.uniform(0, min(2 * mean_wait, policy.longest_wait))
                if failed_at + wait > began_at + policy.limit:
                    raise TimeLimitError from error
            time.sleep(wait)
            mean_wait *= 2

    def _log_failure(self, error: Exception, now: float, seconds: float, policy: RetryPolicy) -> None:
        """Log a failure of a call that has failed for `seconds`; as a warning if that is long and the last warning is old."""
        is_warning = seconds > policy.warn_after and now - self._warned_at > policy.warn_after
        if is_warning:
            self._warned_at = now
        # Log neither the message nor the arguments: they may contain an address.
        failure = f"an answer {error.code}" if isinstance(error, AnswerError) else type(error).__name__
        _log.log(
            logging.WARNING if is_warning else logging.INFO,
            "%s: %s, for %.0f s; trying again, for %g s in all.",
            self._store,
            failure,
            seconds,
            policy.limit,
        )

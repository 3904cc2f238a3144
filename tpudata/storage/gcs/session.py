"""Requests to Google Cloud Storage: authorized, over connections that are kept, and retried after transient errors.

`credentials` says whose credentials are used and which project pays. TPUDATA_GCS_RETRY sets how failing requests are retried, see
`RetryPolicy`. Requests go to the store's server alone: an address in an answer that leads elsewhere would get the token.
"""

from __future__ import annotations

import logging
import math
import os
import re
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar
from urllib.parse import SplitResult, parse_qs, urlencode, urlsplit

import requests
from google.api_core import exceptions as api
from google.api_core.retry import Retry
from google.auth.transport.requests import AuthorizedSession
from requests.adapters import HTTPAdapter
from urllib3.connection import HTTPConnection

from tpudata.storage.gcs.credentials import EMULATOR, billing_project, find_credentials
from tpudata.storage.gcs.pace import Pace
from tpudata.storage.gcs.retry_policy import RetryPolicy, UnprovenError, is_transient, sets_limit
from tpudata.storage.limits import MOST_READ_THREADS, request_limits

T = TypeVar("T")
# Concurrent requests, each with a kept connection: 64 readers with at most two each.
_CONNECTIONS = 128
_ERROR, _TOO_MANY, _UNAVAILABLE = 400, 429, 503
_PORTS = {"http": 80, "https": 443}
# Failures are logged as warnings after this time.
SILENT_SECONDS = 10.0
_UPLOAD = re.compile(r"(upload_id=)[^&\s]+")
_log = logging.getLogger("tpudata")


class Session:
    """Authorized requests over kept connections, opened when first needed; safe to share between threads.

    Args:
        policy: retries of failing requests; None takes the policy of the environment, and the limit of `RequestLimits`.
        silent_seconds: time after which failures are logged as warnings, and least time between two of these.
    """

    def __init__(self, policy: RetryPolicy | None = None, *, silent_seconds: float = SILENT_SECONDS) -> None:
        self._policy = policy
        self._silent_seconds = silent_seconds
        self._environment = RetryPolicy.from_environment()
        self._made: _Client | None = None
        self._warned = -math.inf
        self._lock = threading.Lock()

    @property
    def policy(self) -> RetryPolicy:
        """The current policy."""
        if self._policy is not None:
            return self._policy
        return self._environment if sets_limit() else self._environment.with_limit(request_limits().retry_seconds)

    @property
    def pace(self) -> Pace:
        """The limit of requests in flight."""
        return self._client.pace

    @property
    def _client(self) -> _Client:
        with self._lock:
            if self._made is None:
                self._made = _new_client()
            return self._made

    def new_retry(self) -> Retry:
        """Return the retries of a call that begins now."""
        began = time.monotonic()
        policy = self.policy

        def note(error: Exception) -> None:
            now = time.monotonic()
            is_long = min(now - began, now - self._warned) > self._silent_seconds
            if is_long:
                self._warned = now
            # The type alone: the text may hold an address.
            _log.log(
                logging.WARNING if is_long else logging.INFO,
                "Google Cloud Storage: %s, for %.0f s; trying again, for %g s in all.",
                type(error).__name__,
                now - began,
                policy.limit,
            )

        return Retry(
            predicate=is_transient,
            initial=policy.first_wait,
            maximum=policy.longest_wait,
            multiplier=2.0,
            timeout=policy.limit,
            on_error=note,
        )

    def with_retries(self, call: Callable[[], T]) -> T:
        """Return what a call returns; transient failures are retried with exponential backoff.

        Raises:
            google.api_core.exceptions.RetryError: it kept failing until the policy's limit.
        """
        result: T = self.new_retry()(call)()
        return result

    def request(
        self, method: str, url: str, headers: Mapping[str, str] | None = None, data: bytes | None = None
    ) -> requests.Response:
        """Send one request without retries, as soon as the pace allows it, and return the answer; `url` may be a path on the
        server.

        Raises:
            google.api_core.exceptions.GoogleAPICallError: the answer is an error, 400 or above.
            requests.RequestException: there is no answer.
            UnprovenError: `url` is an address on another server.
        """
        client = self._client
        with client.pace.request() as began:
            response = self._send(client, method, url, headers, data, began)
            # Read the body while the request counts as in flight.
            _ = response.content
        client.pace.raise_limit()
        return response

    def fetch(self, url: str, headers: Mapping[str, str] | None = None) -> tuple[requests.Response, bytes]:
        """Send a GET as `request` does; return the answer and its body as received, not decoded."""
        client = self._client
        with client.pace.request() as began, self._send(client, "GET", url, headers, None, began) as response:
            data: bytes = response.raw.read(decode_content=False)
        client.pace.raise_limit()
        return response, data

    def check_address(self, address: str) -> None:
        """Raise UnprovenError if an address in an answer has another scheme, host or port than the store."""
        self._client.url(address)

    def _send(
        self,
        client: _Client,
        method: str,
        url: str,
        headers: Mapping[str, str] | None,
        data: bytes | None,
        began: float,
    ) -> requests.Response:
        response: requests.Response = client.http.request(
            method,
            client.url(url),
            headers=headers,
            data=data,
            stream=True,
            allow_redirects=False,
            timeout=self.policy.answer_within,
        )
        if response.status_code >= _ERROR:
            with response:
                pause = _retry_after(response)
                if response.status_code == _TOO_MANY or (response.status_code == _UNAVAILABLE and pause is not None):
                    client.pace.lower_limit(began, pause or 0.0)
                raise api.from_http_response(response)  # type: ignore[no-untyped-call]
        return response


class _Client(NamedTuple):
    """Transport settings of requests.

    Attributes:
        http: session that adds the credentials.
        server: scheme and host.
        pace: the limit of requests in flight.
        project: project that pays for the requests; None for the owner of the bucket.
    """

    http: requests.Session
    server: str
    pace: Pace
    project: str | None

    def url(self, address: str) -> str:
        """Return the URL of a request, with the project that pays; `address` may be a path on the server.

        Raises:
            UnprovenError: it is on another server.
        """
        url = f"{self.server}{address}" if address.startswith("/") else address
        try:
            parts = urlsplit(url)
        except ValueError:
            raise UnprovenError("an answer with an address that is none") from None
        if _origin(parts) != _origin(urlsplit(self.server)):
            raise UnprovenError(f"an answer that leads to another server, {parts.scheme}://{parts.hostname}")
        if self.project is None or "userProject" in parse_qs(parts.query):
            return url
        return f"{url}{'&' if parts.query else '?'}{urlencode({'userProject': self.project})}"


def _origin(parts: SplitResult) -> tuple[str, str | None, int | None]:
    """Return scheme, host and port of an address; port 0 if it is none."""
    try:
        return parts.scheme, parts.hostname, parts.port or _PORTS.get(parts.scheme)
    except ValueError:
        return parts.scheme, parts.hostname, 0


class _Adapter(HTTPAdapter):
    """Adapter with TCP_NODELAY through a proxy, too: urllib3 would wait 40 ms a part for an acknowledgement of the header."""

    def proxy_manager_for(self, proxy: str, **given: Any) -> Any:
        return super().proxy_manager_for(proxy, socket_options=HTTPConnection.default_socket_options, **given)


def _new_client() -> _Client:
    credentials = find_credentials()
    http = AuthorizedSession(credentials)  # type: ignore[no-untyped-call]
    adapter = _Adapter(pool_connections=1, pool_maxsize=2 * MOST_READ_THREADS)
    http.mount("https://", adapter)
    http.mount("http://", adapter)
    domain = getattr(credentials, "universe_domain", "googleapis.com")
    server = os.environ.get(EMULATOR) or f"https://storage.{domain}"
    for name in ("urllib3.connectionpool", "google.api_core.retry"):
        logging.getLogger(name).addFilter(_hide_uploads)
    server = (server if "://" in server else f"http://{server}").rstrip("/")
    # All requests go to one server: a third of a request's CPU is the search for its proxy in all variables of the environment.
    settings = http.merge_environment_settings(server, {}, None, None, None)
    http.proxies, http.verify, http.cert = settings["proxies"], settings["verify"], settings["cert"]
    http.trust_env = False
    return _Client(http, server, Pace(_most_in_flight), billing_project())


def _most_in_flight() -> int:
    # A part may be read twice at the same time, so each reader has up to two requests in flight.
    return max(_CONNECTIONS, 2 * request_limits().read_threads)


def _retry_after(response: requests.Response) -> float | None:
    """Return the seconds in the header Retry-After, or None; Google's servers never send a date."""
    try:
        seconds = float(response.headers.get("Retry-After", ""))
    except ValueError:
        return None
    return seconds if 0 <= seconds < math.inf else None


def _hide_uploads(record: logging.LogRecord) -> bool:
    """Hide the ids of uploads in debug logs of libraries: they are as good as passwords."""
    record.msg = _UPLOAD.sub(r"\1...", str(record.msg))
    if isinstance(record.args, tuple):
        is_text = (str, BaseException)
        record.args = tuple(_UPLOAD.sub(r"\1...", str(a)) if isinstance(a, is_text) else a for a in record.args)
    return True

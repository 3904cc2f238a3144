"""Requests to Google Cloud Storage: authorized, over connections that are kept, each sent once.

They are sent by urllib3, with tokens of google-auth, not by google-cloud-storage (3.17) for these reasons:

- Its client asks for the metadata of each bucket in a separate thread, with retries, for traces that are off by default. The
  account may lack the permission (storage.buckets.get), and after a failure other than 403 the next read starts another thread.
  A variable of the environment switches it off, for the whole program, or a private attribute of the client.
- Its client takes no session through a public argument: `_http` is documented as private. The client's own session keeps 10
  connections, looks up proxies and certificates in the environment at each request, and follows redirects.
- Its calls return neither the status nor Content-Range of an answer, nor whether JSON came with gzip's checksum: a deletion, a part
  and a listing would have no proof.
- Its read of 10 kB (`raw_download`, `single_shot_download`, `retry=None`) takes 2.3 times the CPU of ours with all checks by HTTP,
  and 2.5 times by HTTPS with a token; with a session as `_http` that keeps its connections and looks at the environment once, 2.1
  and 1.9 times. Measured in turn, in processes on one core, least of 30 rounds of 200 reads.

The module `credentials` selects the credentials and the project that pays. TPUDATA_GCS_RETRY sets how failing requests are
retried, see `RetryPolicy`. Requests go only to the store's server: an address in an answer that leads elsewhere would get the
token.
"""

from __future__ import annotations

import functools
import gzip
import json
import math
import os
import threading
import zlib
from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import parse_qs, urlencode

from google.auth.transport.requests import Request
from urllib3.util import Timeout, parse_url

from tpudata.storage.gcs.connections import HIDDEN_QUERY, open_pools
from tpudata.storage.gcs.credentials import EMULATOR, find_billing_project, find_credentials
from tpudata.storage.gcs.errors import is_transient
from tpudata.storage.gcs.pace import Pace
from tpudata.storage.limits import request_limits
from tpudata.storage.objects.errors import (
    AbsentError,
    AnswerError,
    ConflictError,
    RangeError,
    UnprovenError,
)
from tpudata.storage.objects.retries import Retries, RetryPolicy

RETRY = "TPUDATA_GCS_RETRY"
# Concurrent requests, each with a kept connection: 64 readers with at most two each.
_CONNECTION_COUNT = 128
# Status codes: the lowest one of an error, and some errors.
_LOWEST_ERROR, _DENIED, _TOO_MANY, _UNAVAILABLE = 400, 401, 429, 503
_ERROR_CLASS_BY_STATUS = {404: AbsentError, 412: ConflictError, 416: RangeError}
# Maximum number of tokens that a request is sent with, one after the other: a token may expire in flight.
_MAX_TOKENS = 3
_PORT_BY_SCHEME = {"http": 80, "https": 443}


class Answer(NamedTuple):
    """An answer of the store.

    Attributes:
        status: status code.
        headers: values by name, whose case does not matter.
        data: the body as received, not decoded.
    """

    status: int
    headers: Mapping[str, str]
    data: bytes


class Transport:
    """Authorized requests over kept connections, opened when first needed; safe to share between threads.

    Args:
        policy: retries of failing requests; None takes the policy of the environment, and the limit of `RequestLimits`.

    Attributes:
        retries: retries of calls that make requests.
    """

    def __init__(self, policy: RetryPolicy | None = None) -> None:
        environment_policy = RetryPolicy.parse(os.environ.get(RETRY, ""), RETRY)
        # A bound method would make a reference cycle, which keeps connections open until the garbage collector runs.
        self._get_policy = functools.partial(_choose_policy, policy, environment_policy)
        self._opened_client: _Client | None = None
        self._lock = threading.Lock()
        self.retries = Retries("Google Cloud Storage", self._get_policy, is_transient)

    @property
    def policy(self) -> RetryPolicy:
        """The current policy."""
        return self._get_policy()

    @property
    def pace(self) -> Pace:
        """The limit of requests in flight."""
        return self._client.pace

    @property
    def _client(self) -> _Client:
        """The client, opened at the first use."""
        with self._lock:
            if self._opened_client is None:
                self._opened_client = _Client()
            return self._opened_client

    def request(
        self, method: str, url: str, headers: Mapping[str, str] | None = None, data: bytes | None = None
    ) -> Answer:
        """Send one request as soon as the pace allows it, without retries, and return the answer.

        Args:
            method: HTTP method, such as "GET".
            url: URL on the store's server, or a path there.
            headers: headers besides the headers of the credentials, or None.
            data: body of the request, or None.

        Raises:
            AnswerError: the answer is an error, 400 or above.
            urllib3.exceptions.HTTPError: there is no answer.
            google.auth.exceptions.GoogleAuthError: there is no token for the credentials.
            UnprovenError: `url` is an address on another server.
        """
        client = self._client
        full_url = client.make_url(url)
        with client.pace.request() as began_at:
            answer = client.send(method, full_url, headers or {}, data, self.policy.answer_within)
            if answer.status >= _LOWEST_ERROR:
                pause = _parse_retry_after(answer)
                if answer.status == _TOO_MANY or (answer.status == _UNAVAILABLE and pause is not None):
                    client.pace.lower_limit(began_at, pause or 0.0)
                raise _make_answer_error(answer)
        client.pace.raise_limit()
        return answer

    def check_address(self, address: str) -> None:
        """Raise UnprovenError if an address in an answer has another scheme, host or port than the store."""
        # The URL is not used: `make_url` raises the error.
        self._client.make_url(address)


class _Client:
    """The store's server, the connections to it, and the credentials, as the environment sets them."""

    def __init__(self) -> None:
        self._credentials = find_credentials()
        domain = getattr(self._credentials, "universe_domain", "googleapis.com")
        server = os.environ.get(EMULATOR) or f"https://storage.{domain}"
        self._server = (server if "://" in server else f"http://{server}").rstrip("/")
        self._pools = open_pools(self._server)
        self._project = find_billing_project()
        # Tokens come from another server, perhaps through another proxy, so a separate session requests them.
        self._token_transport = Request()
        # Held while the token is read or renewed.
        self._token_lock = threading.Lock()
        self.pace = Pace(_compute_highest_limit)

    def make_url(self, address: str) -> str:
        """Return the URL of a request, with the project that pays; `address` may be a path on the server.

        Raises:
            UnprovenError: the address is on another server.
        """
        is_path = address.startswith("/")
        if not is_path and _parse_origin(address) != _parse_origin(self._server):
            scheme, host, _ = _parse_origin(address)
            raise UnprovenError(f"an answer that leads to another server, {scheme}://{host}")
        url = f"{self._server}{address}" if is_path else address
        query = url.partition("?")[2]
        if self._project is None or "userProject" in parse_qs(query):
            return url
        return f"{url}{'&' if query else '?'}{urlencode({'userProject': self._project})}"

    def send(
        self, method: str, url: str, headers: Mapping[str, str], data: bytes | None, silent_seconds: float
    ) -> Answer:
        """Send a request with a token; renew the token and send again if the store rejects it.

        `silent_seconds` is the time that the server may be silent.
        """
        for attempt in range(1, _MAX_TOKENS + 1):
            all_headers = {"User-Agent": "tpudata", **headers}
            with self._token_lock:
                # Adds the token, which is renewed first if it is about to expire.
                self._credentials.before_request(self._token_transport, method, url, all_headers)  # type: ignore[no-untyped-call]
                token = self._credentials.token
            answer = self._send_once(method, url, all_headers, data, silent_seconds)
            if answer.status != _DENIED or attempt == _MAX_TOKENS:
                break
            with self._token_lock:
                # Another thread may have renewed the token.
                if self._credentials.token == token:
                    self._credentials.refresh(self._token_transport)  # type: ignore[no-untyped-call]
        return answer

    def _send_once(
        self, method: str, url: str, headers: dict[str, str], data: bytes | None, silent_seconds: float
    ) -> Answer:
        """Send a request over a kept connection, without retries or redirects; a header may be added to `headers`."""
        # urllib3 logs URLs, and the id of an upload is as good as a password: see `HIDDEN_QUERY`.
        if "upload_id=" in url:
            headers[HIDDEN_QUERY] = f"?{parse_url(url).query}"
            url = url.partition("?")[0]
        # The body is read below, so that a connection that breaks is closed. It stays compressed: callers check gzip's checksum.
        response = self._pools.urlopen(
            method,
            url,
            redirect=False,
            body=data,
            headers=headers,
            retries=False,
            timeout=Timeout(connect=silent_seconds, read=silent_seconds),
            preload_content=False,
            decode_content=False,
        )
        try:
            return Answer(response.status, response.headers, response.read(decode_content=False))
        except BaseException:
            response.close()
            raise


def _parse_origin(address: str) -> tuple[str | None, str | None, int | None]:
    """Return scheme, host and port of an address."""
    parts = parse_url(address)
    return parts.scheme, parts.host, parts.port or _PORT_BY_SCHEME.get(parts.scheme or "")


def _choose_policy(policy: RetryPolicy | None, environment_policy: RetryPolicy) -> RetryPolicy:
    """Return the policy that applies now.

    Args:
        policy: policy that the caller has fixed; None for the policy of the environment.
        environment_policy: policy in the environment variable. Without a limit there, `request_limits()` has the limit.
    """
    if policy is not None:
        return policy
    if "limit" in os.environ.get(RETRY, ""):
        return environment_policy
    return environment_policy.replace_limit(request_limits().retry_seconds)


def _compute_highest_limit() -> int:
    """Return the number of requests that may be in flight at the same time, unless the store asks for fewer."""
    # A part may be read twice at the same time, so each reader has up to two requests in flight.
    return max(_CONNECTION_COUNT, 2 * request_limits().read_threads)


def _parse_retry_after(answer: Answer) -> float | None:
    """Return the number of seconds in the header Retry-After, or None; Google's servers never send a date."""
    try:
        seconds = float(answer.headers.get("Retry-After", ""))
    except ValueError:
        return None
    return seconds if 0 <= seconds < math.inf else None


def _make_answer_error(answer: Answer) -> AnswerError:
    """Return the error of an answer, with the message of its JSON or, if it is not the JSON of an error, its whole body."""
    error_class = _ERROR_CLASS_BY_STATUS.get(answer.status, AnswerError)
    try:
        data = gzip.decompress(answer.data) if answer.headers.get("Content-Encoding") == "gzip" else answer.data
        fields = json.loads(data)["error"]
        # The store's own errors repeat the code; a proxy's errors do not.
        return error_class(answer.status, str(fields["message"]), is_described=fields["code"] == answer.status)
    except (ValueError, RecursionError, LookupError, TypeError, OSError, EOFError, zlib.error):
        return error_class(answer.status, answer.data.decode(errors="replace") or "unknown error")

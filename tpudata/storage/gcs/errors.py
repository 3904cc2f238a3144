"""Errors of Google's client, with the object, the reason and the fix."""

from __future__ import annotations

import contextlib
import re
import textwrap
from collections.abc import Iterator

import google.auth.exceptions
import requests
import urllib3
from google.api_core import exceptions as api

from tpudata.errors import StorageError, StorageUnavailableError
from tpudata.storage.gcs.credentials import ANONYMOUS, is_switched_on
from tpudata.storage.gcs.retry_policy import DamagedError, UnprovenError
from tpudata.storage.gcs.upload import UploadLostError

ERRORS = (
    api.GoogleAPICallError,
    api.RetryError,
    google.auth.exceptions.GoogleAuthError,
    requests.RequestException,
    urllib3.exceptions.HTTPError,
    DamagedError,
    UnprovenError,
    UploadLostError,
)
_LOGIN = "Run `gcloud auth application-default login`, or set GOOGLE_APPLICATION_CREDENTIALS to a service account's key file."
_AGAIN = "Run again, a conversion with --resume."
_ABSENT, _CHANGED = 404, 412
_MOST_WORDS = 400
# During an upload, its id is as good as a password for it.
_ADDRESS = re.compile(r"(https?://[^\s?]+|url: [^\s?]+)\?\S*")


class ReplacedError(api.NotFound):
    """The generation of an object that is being read no longer exists."""


def split_path(path: str) -> tuple[str, str]:
    """Return bucket and object of `gs://BUCKET/OBJECT`."""
    bucket, _, name = path.removeprefix("gs://").partition("/")
    if not path.startswith("gs://") or not bucket[:1].isalnum() or not bucket[-1:].isalnum():
        raise StorageError(f"{path!r}: no bucket (expected gs://BUCKET/OBJECT). Correct the path.")
    return bucket, name


def split_object(path: str) -> tuple[str, str]:
    """Return bucket and object of a path that must name an object."""
    bucket, name = split_path(path)
    if not name:
        raise StorageError(f"{path}: no object (expected gs://BUCKET/OBJECT). Correct the path.")
    return bucket, name


@contextlib.contextmanager
def named(done: str, path: str) -> Iterator[None]:
    """Turn an exception of the client into an error with the object that could not be `done`, the reason and the fix."""
    try:
        yield
    except ERRORS as error:
        kind = StorageError if _is_of_the_object(error) else StorageUnavailableError
        raise kind(f"{path} could not be {done}: {_reason(error, path)}") from error


def _is_of_the_object(error: BaseException) -> bool:
    """Return whether the error is about this one object, so that a retry would not help."""
    return not isinstance(error, api.RetryError) and getattr(error, "code", None) in (_ABSENT, _CHANGED)


def _reason(error: BaseException, path: str) -> str:
    bucket, _ = split_path(path)
    if isinstance(error, api.RetryError):
        return f"{_failure(error.cause)}, until the time limit of retries. {_AGAIN}"
    if isinstance(error, google.auth.exceptions.InvalidOperation):
        return _denied("the store requires credentials (401)")
    if isinstance(error, google.auth.exceptions.DefaultCredentialsError):
        return f"there are no credentials. {_LOGIN} Public objects need none: set {ANONYMOUS}=true."
    if isinstance(error, google.auth.exceptions.GoogleAuthError):
        # The other arguments hold the whole answer.
        words = str(error.args[0]) if error.args else type(error).__name__
        return f"the credentials were rejected ({words}). {_LOGIN}"
    code = getattr(error, "code", None)
    if code == 401:
        return _denied("the credentials are not valid (401)")
    if code == 403:
        return _denied(
            f"no permission (403). Grant the account roles/storage.objectUser on bucket {bucket}, or objectViewer to"
            f" read only. The store says: {_said(error)}."
        )
    if isinstance(error, ReplacedError):
        return "it was replaced or removed while it was read. Run again when no other job writes there."
    if code == _ABSENT:
        return f"no such object, or no bucket {bucket} (404). List the bucket with `gcloud storage ls gs://{bucket}`."
    if code == _CHANGED:
        return "another job wrote it meanwhile (412). Let one job at a time write there, and run again with --resume."
    if isinstance(error, DamagedError):
        return f"the store received damaged data and made no object of them. {_AGAIN}"
    if isinstance(error, UploadLostError) or code == 410:
        return f"the store lost the upload ({error}). {_AGAIN}"
    return f"{_failure(error)}."


def _denied(reason: str) -> str:
    if is_switched_on(ANONYMOUS):
        return f"{reason.rstrip('.')}, and {ANONYMOUS} disables credentials. Unset it."
    return reason if reason.endswith(".") else f"{reason}. {_LOGIN}"


def _failure(error: BaseException | None) -> str:
    """Return the failure of the last request, in few words."""
    if isinstance(error, api.GoogleAPICallError):
        return f"the store answered {error.code} ({_said(error)})"
    if isinstance(error, DamagedError):
        return "the store received damaged data"
    if isinstance(error, UnprovenError):
        return f"no valid answer of the store: {_brief(str(error))}"
    return f"{type(error).__name__}: {_brief(str(error))}"


def _said(error: BaseException) -> str:
    """Return the store's message, without the request that the client puts before it."""
    message = str(getattr(error, "message", error))
    return _brief(message.partition(": ")[2] or message).rstrip(".")


def _brief(text: str) -> str:
    """Return a text on one line, shortened, and without the query of an address."""
    return textwrap.shorten(_ADDRESS.sub(r"\1", text), _MOST_WORDS, placeholder=" ...")

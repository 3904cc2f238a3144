"""What Google's client raises, as errors that say which object, why, and what to do."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import google.auth.exceptions
import requests
import urllib3
from google.api_core import exceptions as api

from tpudata.errors import StorageError
from tpudata.storage._gcs_session import ANONYMOUS, DamagedError, is_switched_on
from tpudata.storage._gcs_upload import UploadLostError

ERRORS = (
    api.GoogleAPICallError,
    api.RetryError,
    google.auth.exceptions.GoogleAuthError,
    requests.RequestException,
    urllib3.exceptions.HTTPError,
    DamagedError,
    UploadLostError,
)
_LOGIN = "Run `gcloud auth application-default login`, or let GOOGLE_APPLICATION_CREDENTIALS name a service account's key file."
_AGAIN = "Run again, with --resume where it converts."


def split_path(path: str) -> tuple[str, str]:
    """Bucket and object of `gs://BUCKET/OBJECT`."""
    bucket, _, name = path.removeprefix("gs://").partition("/")
    if not bucket:
        raise StorageError(f"{path!r} names no bucket; write gs://BUCKET/OBJECT.")
    return bucket, name


@contextlib.contextmanager
def named(done: str, path: str) -> Iterator[None]:
    """Turns what the client raises into an error that says which object could not be `done`, why, and what to do."""
    try:
        yield
    except ERRORS as error:
        raise StorageError(f"{path} could not be {done}: {_reason(error, path)}") from error


def _reason(error: BaseException, path: str) -> str:
    bucket, _ = split_path(path)
    if isinstance(error, api.RetryError):
        return f"{_failure(error.cause)}, until the time for tries was over. {_AGAIN}"
    if isinstance(error, google.auth.exceptions.InvalidOperation):
        return _denied("the store wants credentials (401)")
    if isinstance(error, google.auth.exceptions.DefaultCredentialsError):
        return f"there are no credentials. {_LOGIN} What everybody may read needs none: set {ANONYMOUS}=true."
    if isinstance(error, google.auth.exceptions.GoogleAuthError):
        # What stands behind the first words is the whole answer.
        words = str(error.args[0]) if error.args else type(error).__name__
        return f"the credentials were not taken ({words}). {_LOGIN}"
    code = getattr(error, "code", None)
    if code == 401:
        return _denied("the credentials are not valid (401)")
    if code == 403:
        return _denied(
            f"no permission (403). Grant the account roles/storage.objectUser on bucket {bucket}, to read alone objectViewer."
        )
    if code == 404:
        return f"it is not there (404), or bucket {bucket} is not. Look with `gcloud storage ls gs://{bucket}`."
    if code == 412:
        return "somebody else wrote it meanwhile (412). Let one job at a time write there, and run again with --resume."
    if isinstance(error, DamagedError):
        return f"the store got other bytes than were sent, and made no object of them. {_AGAIN}"
    if isinstance(error, UploadLostError) or code == 410:
        return f"the store lost what it had of the upload ({error}). {_AGAIN}"
    return f"{_failure(error)}."


def _denied(reason: str) -> str:
    if is_switched_on(ANONYMOUS):
        return f"{reason.rstrip('.')}, and {ANONYMOUS} says to show none. Unset it."
    return reason if reason.endswith(".") else f"{reason}. {_LOGIN}"


def _failure(error: BaseException | None) -> str:
    """What went wrong with the last request, in few words."""
    if isinstance(error, api.GoogleAPICallError):
        return f"the store answered {error.code} ({error.message.partition(': ')[2] or error.message})"
    if isinstance(error, DamagedError):
        return "what came does not fit the store's checksum"
    return f"{type(error).__name__}: {error}"

"""What Google's client raises, as errors that say which object, why, and what to do."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import google.auth.exceptions
import requests
from google.api_core import exceptions as api
from google.cloud.storage import exceptions as media

from tpudata.errors import StorageError

PRECONDITION_FAILED = 412
ERRORS = (
    api.GoogleAPICallError,
    api.RetryError,
    google.auth.exceptions.GoogleAuthError,
    requests.RequestException,
    media.InvalidResponse,
    media.DataCorruption,
)


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


def _reason(error: Exception, path: str) -> str:
    bucket, _ = split_path(path)
    code = getattr(error, "code", None) or getattr(getattr(error, "response", None), "status_code", None)
    if isinstance(error, google.auth.exceptions.DefaultCredentialsError):
        return (
            "there are no credentials. Run `gcloud auth application-default login`, or let GOOGLE_APPLICATION_CREDENTIALS"
            " name a service account's key file."
        )
    if isinstance(error, google.auth.exceptions.GoogleAuthError):
        return f"the credentials were not taken ({error}). Run `gcloud auth application-default login` again."
    if code == 401:
        return "the credentials are not valid (401). Run `gcloud auth application-default login` again."
    if code == 403:
        return f"no permission (403). Grant the account roles/storage.objectUser on bucket {bucket}, to read alone objectViewer."
    if code == 404:
        return f"it is not there (404), or bucket {bucket} is not."
    if code == PRECONDITION_FAILED:
        return "somebody else wrote it meanwhile (412). Let one job at a time write there, and run again with --resume."
    return f"{type(error).__name__}: {error}"

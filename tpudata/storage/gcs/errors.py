"""Errors of requests to Google Cloud Storage, with the object, the reason and the fix."""

from __future__ import annotations

import contextlib
import re
import textwrap
from collections.abc import Iterator

import google.auth.exceptions
import requests
import urllib3

from tpudata.errors import StorageError, StorageUnavailableError
from tpudata.storage.gcs.credentials import (
    ANONYMOUS,
    BILLED,
    describe_key_file_fault,
    find_billing_project,
    is_switched_on,
)
from tpudata.storage.gcs.key_file import VARIABLE, find_key_file
from tpudata.storage.objects.errors import (
    AnswerError,
    DamagedError,
    ReplacedError,
    StoreError,
    TimeLimitError,
    UnprovenError,
    UploadLostError,
)

ERRORS = (
    StoreError,
    google.auth.exceptions.GoogleAuthError,
    # google-auth gets tokens with requests.
    requests.RequestException,
    urllib3.exceptions.HTTPError,
)
_TRANSIENT_CODES = frozenset((408, 429, 500, 502, 503, 504))
_TRANSIENT = (
    DamagedError,
    UnprovenError,
    ConnectionError,
    requests.ConnectionError,
    requests.Timeout,
    urllib3.exceptions.NewConnectionError,
    urllib3.exceptions.ProtocolError,
    urllib3.exceptions.ProxyError,
    urllib3.exceptions.TimeoutError,
)
_LOGIN = "Run `gcloud auth application-default login`, or set GOOGLE_APPLICATION_CREDENTIALS to a service account's key file."
_AGAIN = "Run again, a conversion with --resume."
_ABSENT, _CHANGED = 404, 412
_MAX_MESSAGE_CHARACTERS = 400
# Parts of the messages of 403 answers that no role would change, in lower case, and the fixes.
_FORBIDDEN = (
    (
        "retention",
        "Write into a bucket without retention: tpudata replaces and deletes its objects as it works.",
    ),
    (" hold ", "Release the hold (`gcloud storage objects update --no-temporary-hold --no-event-based-hold`)."),
    ("organization's policy", "Run inside of the organization's VPC service perimeter, or have it extended."),
    ("billing account", "Turn on billing of the bucket's project, or ask its owner to."),
    ("insufficient authentication scopes", "Give the machine the access scope of storage (`--scopes=cloud-platform`)."),
    ("provided scope", "Give the machine the access scope of storage (`--scopes=cloud-platform`)."),
    ("rate limit", "Run again later, or raise the quota of the project."),
    ("quota", "Run again later, or raise the quota of the project."),
)
# URLs with a query, which may have the id of an upload: the id is as good as a password for the upload.
_URL_WITH_QUERY = re.compile(r"(https?://[^\s?]+|url: [^\s?]+)\?\S*")


def is_transient(error: BaseException | None) -> bool:
    """Return whether the same request may succeed later."""
    if isinstance(error, AnswerError):
        return error.code in _TRANSIENT_CODES
    if isinstance(error, google.auth.exceptions.GoogleAuthError):
        # google-auth does not call an error retryable if its request for a token got no answer.
        has_no_answer = isinstance(error, google.auth.exceptions.TransportError) and is_transient(error.__cause__)
        return has_no_answer or bool(error.retryable)
    if isinstance(error, (requests.exceptions.SSLError, urllib3.exceptions.SSLError)):
        # A wrong certificate stays wrong; a broken connection may work again.
        return "CERTIFICATE" not in str(error).upper()
    return isinstance(error, _TRANSIENT)


def split_path(path: str) -> tuple[str, str]:
    """Return the bucket and the object of `gs://BUCKET/OBJECT`; the object is empty if the path is a bucket.

    Raises:
        StorageError: the path names no bucket.
    """
    bucket, _, name = path.removeprefix("gs://").partition("/")
    # A bucket's name begins and ends with a letter or digit.
    if not path.startswith("gs://") or not bucket[:1].isalnum() or not bucket[-1:].isalnum():
        raise StorageError(f"{path!r}: no bucket (expected gs://BUCKET/OBJECT). Correct the path.")
    return bucket, name


def split_object(path: str) -> tuple[str, str]:
    """Return the bucket and the object of a path; StorageError if it names no object."""
    bucket, name = split_path(path)
    if not name:
        raise StorageError(f"{path}: no object (expected gs://BUCKET/OBJECT). Correct the path.")
    return bucket, name


@contextlib.contextmanager
def translate_errors(action: str, path: str) -> Iterator[None]:
    """Turn an exception of a request into an error that names the object, the reason and the fix.

    Args:
        action: what could not be done with the object, as a participle such as "read".
        path: path of the object.

    Raises:
        StorageError: the error is about this object.
        StorageUnavailableError: the error is about the store or the connection.
    """
    try:
        yield
    except ERRORS as error:
        error_class = StorageError if _is_about_object(error) else StorageUnavailableError
        raise error_class(f"{path} could not be {action}: {_describe_error(error, path)}") from error


def _is_about_object(error: BaseException) -> bool:
    """Return whether an error is about one object, not about the store or the connection."""
    return getattr(error, "code", None) in (_ABSENT, _CHANGED)


def _describe_error(error: BaseException, path: str) -> str:
    """Return the reason of an error, with a fix if there is one."""
    bucket, _ = split_path(path)
    if isinstance(error, TimeLimitError):
        return f"{_describe_failure(error.__cause__)}, until the time limit of retries. {_AGAIN}"
    if isinstance(error, google.auth.exceptions.InvalidOperation):
        return _describe_denial("the store requires credentials (401)")
    if isinstance(error, google.auth.exceptions.GoogleAuthError):
        return _explain_credentials(error)
    code = getattr(error, "code", None)
    if code in (400, 401, 403) and (reason := _find_billing_reason(error, bucket)) is not None:
        return reason
    if code == 401:
        return _describe_denial("the credentials are not valid (401)")
    if code == 403:
        return _explain_forbidden(error, bucket)
    if isinstance(error, ReplacedError):
        return "it was replaced or removed while it was read. Run again when no other job writes there."
    if code == _ABSENT:
        return f"no such object, or no bucket {bucket} (404). List the bucket with `gcloud storage ls gs://{bucket}`."
    if code == _CHANGED:
        return "another job wrote it meanwhile (412). Let one job at a time write there, and run again with --resume."
    if isinstance(error, DamagedError):
        return f"the store received damaged data and made no object of them. {_AGAIN}"
    if isinstance(error, UploadLostError) or code == 410:
        return f"the store lost the upload ({_shorten(str(error))}). {_AGAIN}"
    return f"{_describe_failure(error)}."


def _explain_credentials(error: google.auth.exceptions.GoogleAuthError) -> str:
    """Return the reason why the credentials gave no token, and the fix."""
    file = find_key_file()
    fix = "Run `gcloud auth application-default login` again."
    if file is not None and file.is_set:
        fix = f"Set {VARIABLE} to a whole key file, or unset it and run `gcloud auth application-default login`."
    if (fault := describe_key_file_fault()) is not None:
        return f"the credentials cannot be used ({fault}). {fix}"
    # The other arguments may hold the whole answer.
    reason = _shorten(str(error.args[0])) if error.args else type(error).__name__
    if isinstance(error, google.auth.exceptions.DefaultCredentialsError):
        if file is not None:
            return f"the credentials cannot be used ({file}: {reason}). {fix}"
        return f"there are no credentials. {_LOGIN} Public objects need none: set {ANONYMOUS}=true."
    source = "" if file is None else f" of {file}"
    if isinstance(error, google.auth.exceptions.TransportError):
        return f"there was no token for the credentials{source} ({reason}). Check the network, and run again."
    return f"the credentials{source} were rejected ({reason}). {_LOGIN}"


def _find_billing_reason(error: BaseException, bucket: str) -> str | None:
    """Return the reason and the fix of an error about the project that pays for the request; None for other errors."""
    message = _read_message(error)
    project = find_billing_project()
    if "requester pays" in message.lower():
        if is_switched_on(ANONYMOUS):
            return _describe_denial(f"bucket {bucket} requires a requester who pays ({message})")
        return f"bucket {bucket} requires a project that pays ({message}). Set {BILLED} to a project of yours."
    if "serviceusage.services.use" not in message and "user project" not in message.lower():
        return None
    if project is not None:
        return (
            f"the project {project} of {BILLED} cannot pay ({message}). Correct the variable, or grant the account"
            " roles/serviceusage.serviceUsageConsumer on that project."
        )
    return (
        f"the account may not use the quota project of its credentials ({message}). Correct or unset GOOGLE_CLOUD_QUOTA_PROJECT,"
        " run `gcloud auth application-default set-quota-project PROJECT`, or grant the account"
        " roles/serviceusage.serviceUsageConsumer on that project."
    )


def _explain_forbidden(error: BaseException, bucket: str) -> str:
    """Return the reason and the fix of a response 403: a missing role, or a policy for which no role helps."""
    message = _read_message(error)
    # A message about a missing permission quotes names of objects, and a name may contain any of the marks.
    is_missing_permission = "does not have" in message or "Permission '" in message
    if not is_missing_permission:
        for mark, fix in _FORBIDDEN:
            if mark in message.lower():
                return f"the store does not allow it (403: {message}). {fix}"
    denial = _describe_denial(
        "no permission (403)",
        f"Grant the account roles/storage.objectUser on bucket {bucket}, or objectViewer to read only.",
    )
    return f"{denial} The store says: {message}."


def _describe_denial(reason: str, fix: str = _LOGIN) -> str:
    """Return the reason and the fix of a denial; if anonymous access is switched on, the fix is to unset it."""
    if is_switched_on(ANONYMOUS):
        return f"{reason}, and {ANONYMOUS} disables credentials. Unset it."
    return f"{reason}. {fix}"


def _describe_failure(error: BaseException | None) -> str:
    """Return what went wrong with a request; the caller adds the fix."""
    if isinstance(error, AnswerError):
        return f"the store answered {error.code} ({_read_message(error)})"
    if isinstance(error, DamagedError):
        return "the store received damaged data"
    if isinstance(error, UnprovenError):
        return f"no valid answer of the store: {_shorten(str(error))}"
    return f"{type(error).__name__}: {_shorten(str(error))}"


def _read_message(error: BaseException) -> str:
    """Return the store's message in an error or, if there is none, the error as a string: one line without a full stop."""
    return _shorten(str(getattr(error, "message", error))).rstrip(".")


def _shorten(message: str) -> str:
    """Return a message on one line, shortened, and without the queries of URLs."""
    return textwrap.shorten(_URL_WITH_QUERY.sub(r"\1", message), _MAX_MESSAGE_CHARACTERS, placeholder=" ...")

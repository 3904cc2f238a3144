"""Credentials for Google Cloud Storage: the application default ones.

They are the file that `gcloud auth application-default login` wrote, the file that GOOGLE_APPLICATION_CREDENTIALS names (a service
account's key, an impersonation, a federation), or the machine's own credentials. Two variables of gcloud also apply:

    CLOUDSDK_AUTH_DISABLE_CREDENTIALS=true              no credentials, for public objects
    CLOUDSDK_AUTH_IMPERSONATE_SERVICE_ACCOUNT=ACCOUNT   credentials of another account, impersonated with the default ones

TPUDATA_GCS_BILLING_PROJECT names the project that pays for requests, which some buckets require. Google's libraries have no
variable for it: GOOGLE_CLOUD_QUOTA_PROJECT, or the project in the file of credentials, is for quota. There is no default, since the
store rejects every request that names a project that the account may not use, even for buckets that require none.

STORAGE_EMULATOR_HOST, as in Google's client, names a server to use in place of Google's, without credentials.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import google.auth
from google.auth import impersonated_credentials
from google.auth.credentials import AnonymousCredentials, Credentials, CredentialsWithQuotaProject
from google.auth.exceptions import DefaultCredentialsError, GoogleAuthError

from tpudata.storage.gcs.key_file import find_key_file, find_key_file_fault

EMULATOR = "STORAGE_EMULATOR_HOST"
ANONYMOUS = "CLOUDSDK_AUTH_DISABLE_CREDENTIALS"
IMPERSONATED = "CLOUDSDK_AUTH_IMPERSONATE_SERVICE_ACCOUNT"
BILLED = "TPUDATA_GCS_BILLING_PROJECT"
_SCOPES = ("https://www.googleapis.com/auth/devstorage.full_control",)


def is_switched_on(variable: str) -> bool:
    """Return whether an environment variable is true, as gcloud reads it."""
    return os.environ.get(variable, "").strip().lower() in ("1", "true", "yes", "on")


def find_credentials() -> Credentials:
    """Return the credentials that the environment selects, with the billing project if it names one.

    Raises:
        google.auth.exceptions.GoogleAuthError: no credentials are found, or their file is wrong.
    """
    if is_switched_on(ANONYMOUS) or os.environ.get(EMULATOR):
        return AnonymousCredentials()  # type: ignore[no-untyped-call]
    credentials = _select_credentials()
    project = find_billing_project()
    if project is None or not isinstance(credentials, CredentialsWithQuotaProject):
        return credentials
    # Without this, the header of the credentials could name a different project from the request.
    with_project: Credentials = credentials.with_quota_project(project)  # type: ignore[no-untyped-call]
    return with_project


def _select_credentials() -> Credentials:
    """Return the default credentials, or credentials that use them to impersonate the account that the environment names."""
    account = os.environ.get(IMPERSONATED, "").strip()
    if not account:
        return load_default_credentials(_SCOPES)[0]
    # The default credentials need this scope to impersonate; the impersonated ones get `_SCOPES`.
    default_credentials, _ = load_default_credentials(("https://www.googleapis.com/auth/cloud-platform",))
    # As in gcloud: the last account of a chain is impersonated, through the accounts before it.
    *delegates, target = [part.strip() for part in account.split(",")]
    return impersonated_credentials.Credentials(  # type: ignore[no-untyped-call]
        default_credentials, target, _SCOPES, delegates=delegates
    )


def load_default_credentials(scopes: Sequence[str] | None = None) -> tuple[Credentials, str | None]:
    """Return the application default credentials, and the project that they or the environment name.

    Raises:
        google.auth.exceptions.GoogleAuthError: none are found, or their file is wrong, see `describe_key_file_fault`.
    """
    try:
        credentials_and_project: tuple[Credentials, str | None] = google.auth.default(scopes=scopes)
    except (GoogleAuthError, MemoryError):
        raise
    except Exception as error:
        # A list in place of the file's object is an AttributeError, a folder an IsADirectoryError, and so on.
        if find_key_file() is None:
            raise
        raise DefaultCredentialsError(f"{type(error).__name__} as they were read") from error  # type: ignore[no-untyped-call]
    return credentials_and_project


def describe_key_file_fault() -> str | None:
    """Return the file of credentials that google-auth reads and its fault, in words; None if no fault is found."""
    file = find_key_file()
    fault = None if file is None else find_key_file_fault(file.path)
    return None if fault is None else f"{file}: {fault}"


def find_billing_project() -> str | None:
    """Return the project that pays for requests; None if the bucket's owner pays."""
    # A request without credentials must not name a billing project: the store would answer 401 even for public objects.
    if is_switched_on(ANONYMOUS):
        return None
    return os.environ.get(BILLED, "").strip() or None

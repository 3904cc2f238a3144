"""Credentials for Google Cloud Storage: the application default ones.

They are what `gcloud auth application-default login` wrote, the file that GOOGLE_APPLICATION_CREDENTIALS names (a service account's
key, an impersonation, a federation), or those of the machine. Two variables of gcloud also apply:

    CLOUDSDK_AUTH_DISABLE_CREDENTIALS=true              no credentials, for public objects
    CLOUDSDK_AUTH_IMPERSONATE_SERVICE_ACCOUNT=ACCOUNT   those of another account, impersonated with the default ones

STORAGE_EMULATOR_HOST, as in Google's client, names a server to use in place of Google's, without credentials.
"""

from __future__ import annotations

import os

import google.auth
from google.auth import impersonated_credentials
from google.auth.credentials import AnonymousCredentials, Credentials

EMULATOR = "STORAGE_EMULATOR_HOST"
ANONYMOUS = "CLOUDSDK_AUTH_DISABLE_CREDENTIALS"
IMPERSONATED = "CLOUDSDK_AUTH_IMPERSONATE_SERVICE_ACCOUNT"
_SCOPES = ("https://www.googleapis.com/auth/devstorage.full_control",)


def is_switched_on(variable: str) -> bool:
    """Return whether an environment variable is true, as gcloud reads it."""
    return os.environ.get(variable, "").strip().lower() in ("1", "true", "yes", "on")


def find_credentials() -> Credentials:
    """Return the credentials that the environment selects.

    Raises:
        google.auth.exceptions.GoogleAuthError: there are none.
    """
    if is_switched_on(ANONYMOUS) or os.environ.get(EMULATOR):
        return AnonymousCredentials()  # type: ignore[no-untyped-call]
    account = os.environ.get(IMPERSONATED, "").strip()
    if not account:
        found, _ = google.auth.default(scopes=_SCOPES)
        return found
    own, _ = google.auth.default(scopes=("https://www.googleapis.com/auth/cloud-platform",))
    *delegates, target = [part.strip() for part in account.split(",")]
    return impersonated_credentials.Credentials(own, target, _SCOPES, delegates=delegates)  # type: ignore[no-untyped-call]

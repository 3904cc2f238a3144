"""The file of credentials that google-auth reads, and faults in it.

google-auth reports any fault of the file as missing credentials, or fails on it with a different error. Messages here show
nothing of the file's content but its type: the rest may be secret.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from google.auth import crypt
from google.auth.exceptions import GoogleAuthError

VARIABLE = "GOOGLE_APPLICATION_CREDENTIALS"
# Fields that have to hold strings, by the type of the file.
_FIELDS_BY_TYPE: dict[str, tuple[str, ...]] = {
    "service_account": ("client_email", "token_uri", "private_key"),
    "authorized_user": ("client_id", "client_secret", "refresh_token"),
    "impersonated_service_account": ("service_account_impersonation_url",),
    "external_account": ("audience", "subject_token_type", "token_url"),
    "external_account_authorized_user": (),
    "gdch_service_account": ("project", "private_key_id", "private_key", "name", "token_uri"),
}


class KeyFile(NamedTuple):
    """The file of credentials.

    Attributes:
        path: its path.
        is_set: whether GOOGLE_APPLICATION_CREDENTIALS names it; otherwise it is the file that gcloud writes.
    """

    path: Path
    is_set: bool

    def __str__(self) -> str:
        return f"{VARIABLE}={self.path}" if self.is_set else str(self.path)


def find_key_file() -> KeyFile | None:
    """Return the file of credentials that google-auth reads; None if `VARIABLE` names no file and gcloud has written none.

    The file named by the variable may not exist.
    """
    if name := os.environ.get(VARIABLE):
        return KeyFile(Path(name), is_set=True)
    folder = os.environ.get("CLOUDSDK_CONFIG") or "~/.config/gcloud"
    path = Path(folder).expanduser() / "application_default_credentials.json"
    return KeyFile(path, is_set=False) if path.is_file() else None


def find_key_file_fault(path: Path) -> str | None:
    """Return the fault of a file of credentials, in words; None if no fault is found."""
    try:
        if path.exists() and not path.is_file():
            # Reading a pipe, such as a shell's <(command), could block, or take its content from google-auth.
            return None if path.is_fifo() else "it is not a file"
        data = path.read_bytes()
    except OSError as error:
        return f"it cannot be read: {error.strerror}"
    if not data.strip():
        return "it is empty"
    try:
        fields = json.loads(data)
    except (ValueError, RecursionError):
        return "it is not JSON, or was cut"
    return _find_field_fault(fields)


def _find_field_fault(fields: object) -> str | None:
    """Return the fault in the parsed JSON of a file of credentials, in words; None if no fault is found."""
    if not isinstance(fields, Mapping):
        return "it holds no JSON object"
    file_type = fields.get("type")
    if not isinstance(file_type, str) or file_type not in _FIELDS_BY_TYPE:
        if "installed" in fields or "web" in fields:
            return "it is the secret of an OAuth client, not a key of an account"
        # Truncated, since a wrong type may hold anything.
        type_text = "no type" if file_type is None else f"the type {file_type!r:.40}"
        return f"it has {type_text} (expected {', '.join(sorted(_FIELDS_BY_TYPE))})"
    missing_names = [
        name for name in _FIELDS_BY_TYPE[file_type] if not isinstance(fields.get(name), str) or not fields[name].strip()
    ]
    if missing_names:
        return f"it is of the type {file_type}, and lacks {', '.join(missing_names)}"
    if file_type == "service_account":
        return _find_key_fault(fields["private_key"])
    if file_type == "impersonated_service_account":
        # Credentials of another account, which are exchanged for the credentials of the impersonated account.
        source_fault = _find_field_fault(fields.get("source_credentials"))
        return None if source_fault is None else f"in its source_credentials, {source_fault}"
    return None


def _find_key_fault(key: str) -> str | None:
    """Return the fault of a service account's private key, in words; None if google-auth can load it."""
    try:
        crypt.RSASigner.from_string(key)  # type: ignore[no-untyped-call]
    except (ValueError, TypeError, GoogleAuthError):
        return "its private_key is not a key in PEM, or was cut"
    return None

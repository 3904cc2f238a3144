"""Environment variables that lead the clients of a process to a store on loopback."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from scripts.fake_gcs.server import FakeGcs

# TensorFlow's client for gs:// only knows Google's hosts, by HTTPS: the store is its proxy.
_TENSORFLOW = {
    # Only the value `true` keeps the client from asking Google's metadata server first.
    "NO_GCE_CHECK": "true",
    "GCE_METADATA_HOST": "127.0.0.1:9",
    # Without it, the client caches the size of a file for 5 seconds, in which another client may replace the file.
    "GCS_STAT_CACHE_MAX_AGE": "0",
    "GCS_RETRY_CONFIG_INIT_DELAY_TIME_US": "100000",
    "GCS_RETRY_CONFIG_MAX_DELAY_TIME_US": "1000000",
}


def environment(store: FakeGcs, folder: Path) -> dict[str, str]:
    """Return the variables for all three clients: google-cloud-storage and Beam's GcsIO use the store itself, TensorFlow its proxy.

    Args:
        store: the store.
        folder: folder in which a certificate and the key file of an invented account are written.
    """
    return {**proxied_environment(store, folder), "STORAGE_EMULATOR_HOST": store.url}


def proxied_environment(store: FakeGcs, folder: Path) -> dict[str, str]:
    """Return the variables with which all three clients send requests for Google's hosts, by HTTPS and with credentials.

    Args:
        store: the store.
        folder: folder in which a certificate and the key file of an invented account are written.
    """
    authority = folder / "authority.pem"
    authority.write_bytes(store.authority)
    return {
        **_TENSORFLOW,
        "https_proxy": store.url,
        "HTTPS_PROXY": store.url,
        "no_proxy": "127.0.0.1,localhost",
        "NO_PROXY": "127.0.0.1,localhost",
        "CURL_CA_BUNDLE": str(authority),
        "REQUESTS_CA_BUNDLE": str(authority),
        "GOOGLE_APPLICATION_CREDENTIALS": str(write_key_file(store, folder)),
        "GOOGLE_CLOUD_PROJECT": "test",
    }


def write_key_file(store: FakeGcs, folder: Path) -> Path:
    """Write the key file of an invented account, unless it exists; return its path."""
    path = folder / "service-account.json"
    if not path.exists():
        path.write_text(json.dumps(service_account(f"{store.url}/token")))
        path.chmod(0o600)
    return path


def service_account(token_uri: str) -> dict[str, Any]:
    """Make the content of a key file: an invented account with a new key, whose tokens come from `token_uri`."""
    # A short key, since nothing depends on it: each client takes 7 ms to check it, and 36 ms for one of 2048 bits.
    key = rsa.generate_private_key(public_exponent=65537, key_size=1024)
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return {
        "type": "service_account",
        "project_id": "test",
        "private_key_id": "1",
        "private_key": secret.decode(),
        "client_email": "nobody@test.iam.gserviceaccount.com",
        "client_id": "1",
        "auth_uri": "https://accounts.google.com/o/oauth2/auth",
        "token_uri": token_uri,
    }

"""Credentials: their sources, their faults, and the servers that see them."""

from __future__ import annotations

import base64
import json
import logging
import os
import socket
import ssl
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from google.auth.exceptions import GoogleAuthError

from scripts.fake_gcs import FakeGcs, Fault
from tests.helpers.forked import run
from tpudata.cli.doctor.probe import describe_credentials
from tpudata.errors import StorageError, StorageUnavailableError
from tpudata.storage.gcs import GcsStorage
from tpudata.storage.gcs.credentials import ANONYMOUS, IMPERSONATED
from tpudata.storage.objects.retries import RetryPolicy


def key(as_google: FakeGcs) -> dict[str, str]:
    """The account's key file."""
    found: dict[str, str] = json.loads(Path(os.environ["GOOGLE_APPLICATION_CREDENTIALS"]).read_bytes())
    return found


@pytest.fixture
def described(as_google: FakeGcs) -> FakeGcs:
    """A store with one object, whose counts start at 0."""
    as_google.put("data", "a", b"data")
    as_google.seen_authorization.clear()
    return as_google


def test_uses_one_token_of_a_service_account(described: FakeGcs) -> None:
    assert GcsStorage().read("gs://data/a") == b"data"
    assert described.requests["token"] == 1
    assert all(seen.startswith("Bearer secret-token-") for seen in described.seen_authorization)


def test_uses_a_persons_application_default_credentials(
    described: FakeGcs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "gcloud" / "application_default_credentials.json"
    file.parent.mkdir()
    person = {"type": "authorized_user", "client_id": "c", "client_secret": "s", "refresh_token": "r"}
    file.write_text(json.dumps(person))
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS")
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(file.parent))
    assert GcsStorage().read("gs://data/a") == b"data"
    assert described.requests["token"] == 1


def test_impersonates_another_account(described: FakeGcs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(IMPERSONATED, "other@test.iam.gserviceaccount.com")
    assert GcsStorage().read("gs://data/a") == b"data"
    # The account's own token, which then gets the other's.
    assert described.requests["token"] == 2
    assert len(described.seen_authorization) == 1


def test_credentials_names_the_accounts_in_use(as_google: FakeGcs, monkeypatch: pytest.MonkeyPatch) -> None:
    nobody = "nobody@test.iam.gserviceaccount.com"
    assert describe_credentials() == f"{nobody}, project test"
    monkeypatch.setenv(IMPERSONATED, "one@test, other@test")
    assert describe_credentials() == f"other@test, impersonated by {nobody}, project test"
    monkeypatch.setenv(ANONYMOUS, "1")
    assert describe_credentials() == f"none used: {ANONYMOUS} is 1"
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", "http://127.0.0.1:9")
    assert describe_credentials() == "none needed: STORAGE_EMULATOR_HOST is http://127.0.0.1:9"


def test_anonymous_access_requests_no_token(described: FakeGcs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ANONYMOUS, "true")
    with pytest.raises(StorageError, match=rf"gs://data/a .*401.*{ANONYMOUS} disables credentials"):
        GcsStorage().read("gs://data/a")
    described.needs_token = False
    described.bucket("secret")
    described.denied.add("secret")
    words = rf"no permission \(403\), and {ANONYMOUS} disables credentials\. Unset it\. The store says: "
    with pytest.raises(StorageError, match=words):
        GcsStorage().read("gs://secret/a")
    assert GcsStorage().read("gs://data/a") == b"data"
    # This client has no token; late requests of the previous test may have one.
    assert described.requests["token"] == 0
    assert "" in described.seen_authorization


def test_missing_credentials_say_how_to_get_them(
    described: FakeGcs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS")
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))
    # Nor does the machine have credentials.
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    with pytest.raises(StorageError, match=r"no credentials\. Run `gcloud auth application-default login`"):
        GcsStorage().read("gs://data/a")


# By content, or None for no file: what the message names.
FAULTS = {
    "missing": (None, "it cannot be read: No such file or directory"),
    "folder": (..., "it is not a file"),
    "empty": (b"", "it is empty"),
    "text": (b"AIza-secret", "it is not JSON, or was cut"),
    "deep": (b"[" * 100_000, "it is not JSON, or was cut"),
    "list": (b"[]", "it holds no JSON object"),
    "untyped": (b"{}", "it has no type (expected authorized_user, "),
    "client": (b'{"installed": {}}', "it is the secret of an OAuth client"),
    "half": ({"private_key": ...}, "it is of the type service_account, and lacks private_key"),
    "null": ({"token_uri": None}, "it is of the type service_account, and lacks token_uri"),
    "cut": ({"private_key": "-----BEGIN PRIVATE KEY-----\nsecret"}, "its private_key is not a key in PEM"),
    "impersonation": (
        b'{"type": "impersonated_service_account", "service_account_impersonation_url": "u"}',
        "in its source_credentials, it holds no JSON object",
    ),
}


@pytest.mark.parametrize("kind", FAULTS)
def test_names_the_fault_of_a_key_file(
    described: FakeGcs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    content, words = FAULTS[kind]
    path = tmp_path / "key.json"
    if content is ...:
        path.mkdir()
    elif isinstance(content, bytes):
        path.write_bytes(content)
    elif isinstance(content, dict):
        fields = {**key(described), **content}
        path.write_text(json.dumps({name: value for name, value in fields.items() if value is not ...}))
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(path))
    with pytest.raises(StorageError) as found:
        GcsStorage(RetryPolicy(first_wait=0.01, limit=0.1)).read("gs://data/a")
    message = str(found.value)
    assert (
        f"gs://data/a could not be read: the credentials cannot be used (GOOGLE_APPLICATION_CREDENTIALS={path}: {words}"
        in message
    )
    assert message.endswith("or unset it and run `gcloud auth application-default login`.")
    assert "secret" not in message.replace("the secret of an OAuth client", "")
    assert "\n" not in message
    with pytest.raises(GoogleAuthError) as named:
        describe_credentials()
    assert f"{path}: {words}" in str(named.value)


def test_names_the_fault_of_gclouds_file(described: FakeGcs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "application_default_credentials.json"
    file.write_text("{")
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS")
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))
    with pytest.raises(StorageError, match=rf"\({file}: it is not JSON, or was cut\)\. Run `gcloud .* login` again\."):
        GcsStorage().read("gs://data/a")


def test_an_unreachable_token_server_is_not_reported_as_rejected_credentials(
    described: FakeGcs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, fields = tmp_path / "key.json", key(described)
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(path))
    # A lost connection is retried, but an invalid address is not.
    for address, words in (
        ("http://127.0.0.1:9/token", "TransportError: .*until the time limit of retries"),
        ("nowhere", rf"there was no token for the credentials of GOOGLE_APPLICATION_CREDENTIALS={path} \(Invalid URL"),
    ):
        path.write_text(json.dumps({**fields, "token_uri": address}))
        with pytest.raises(StorageError, match=words):
            GcsStorage(RetryPolicy(first_wait=0.01, limit=0.1)).read("gs://data/a")


def test_a_token_goes_to_no_other_server(described: FakeGcs) -> None:
    hasty = GcsStorage(RetryPolicy(first_wait=0.01, limit=0.1))
    with FakeGcs() as other:
        other.bucket("data")
        # Another port, the same host by another scheme, and another host whose name begins alike.
        for address in (other.url, "http://storage.googleapis.com", "https://storage.googleapis.com.example.com"):
            described.uploads_at = address
            with pytest.raises(StorageError, match="leads to another server"), hasty.create("gs://data/new") as file:
                file.write(b"x" * (2 << 20))
        assert other.seen_authorization == set()
    described.uploads_at = None
    with hasty.create("gs://data/new") as file:
        file.write(b"x" * (2 << 20))
    assert len(described.buckets["data"]["new"].data) == 2 << 20


def test_requests_name_the_billing_project(described: FakeGcs, monkeypatch: pytest.MonkeyPatch) -> None:
    described.requester_pays["data"] = {"mine"}
    with pytest.raises(StorageError, match=r"requires a project that pays .*Set TPUDATA_GCS_BILLING_PROJECT to"):
        GcsStorage().read("gs://data/a")
    monkeypatch.setenv("TPUDATA_GCS_BILLING_PROJECT", "other")
    with pytest.raises(
        StorageError, match=r"the project other of TPUDATA_GCS_BILLING_PROJECT cannot pay .*serviceUsageConsumer"
    ):
        GcsStorage().read("gs://data/a")
    monkeypatch.setenv("TPUDATA_GCS_BILLING_PROJECT", "mine")
    # The header of Google's library must not name another project.
    monkeypatch.setenv("GOOGLE_CLOUD_QUOTA_PROJECT", "quota")
    described.seen_projects.clear()
    gcs = GcsStorage()
    for size in (1000, 20 << 20):
        with gcs.create("gs://data/new") as file:
            file.write(b"x" * size)
        with gcs.open("gs://data/new") as file:
            assert file.read() == b"x" * size
    assert [entry.name for entry in gcs.list("gs://data")] == ["a", "new"]
    assert gcs.swap("gs://data/new", b"x" * (20 << 20), None)
    gcs.delete("gs://data/a")
    assert described.buckets["data"] == {}
    assert described.seen_projects - {(None, None)} == {("mine", "mine")}
    # A request without credentials cannot name a project.
    described.needs_token = False
    monkeypatch.setenv(ANONYMOUS, "true")
    with pytest.raises(StorageError, match=f"requires a requester who pays .*{ANONYMOUS} disables credentials"):
        GcsStorage().read("gs://data/a")


def test_sends_the_quota_project_only_as_googles_header(described: FakeGcs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOOGLE_CLOUD_QUOTA_PROJECT", "quota")
    described.seen_projects.clear()
    assert GcsStorage().read("gs://data/a") == b"data"
    assert described.seen_projects - {(None, None)} == {(None, "quota")}
    described.requester_pays["data"] = {"mine"}
    with pytest.raises(StorageError, match=r"may not use the quota project .* unset GOOGLE_CLOUD_QUOTA_PROJECT"):
        GcsStorage().read("gs://data/a")


@pytest.mark.matrix
def test_tensorflow_bills_only_the_project_in_the_header_variable(described: FakeGcs) -> None:
    described.requester_pays["data"] = {"mine"}
    program = (
        "import tensorflow as tf; print(tf.io.gfile.GFile('gs://data/a').read(), tf.io.gfile.listdir('gs://data'))"
    )
    for variable, words in (
        ("GCS_ADDITIONAL_REQUEST_HEADER", "data ['a']"),
        ("TPUDATA_GCS_BILLING_PROJECT", "no user project"),
    ):
        value = "x-goog-user-project: mine" if "HEADER" in variable else "mine"
        # A separate process: TensorFlow reads the variable as it is loaded.
        done = subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, variable: value},
            capture_output=True,
            text=True,
            check=False,
        )
        assert words in done.stdout + done.stderr


def test_does_not_advise_a_role_against_a_retention_policy(described: FakeGcs) -> None:
    described.retained.add("data")
    for change in (
        lambda: GcsStorage().delete("gs://data/a"),
        lambda: GcsStorage().swap("gs://data/a", b"data", b"new"),
    ):
        with pytest.raises(
            StorageError, match=r"bucket's retention policy .* Write into a bucket without retention"
        ) as found:
            change()
        assert "role" not in str(found.value)


def test_replaces_expired_tokens(described: FakeGcs) -> None:
    gcs = GcsStorage()
    for _ in range(3):
        assert gcs.read("gs://data/a") == b"data"
        described.expire_tokens()
    assert described.requests["token"] == 3


def test_many_threads_renew_a_token_once(described: FakeGcs) -> None:
    gcs = GcsStorage()
    described.latency = 0.02
    with ThreadPoolExecutor(16) as pool:
        for count in (1, 2):
            assert set(pool.map(gcs.read, ["gs://data/a"] * 64)) == {b"data"}
            assert described.requests["token"] == count
            described.expire_tokens()


@pytest.mark.parametrize("content", [None, b"no certificate"])
def test_names_an_unusable_certificate_file(
    described: FakeGcs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes | None
) -> None:
    path = tmp_path / "authorities.pem"
    if content is not None:
        path.write_bytes(content)
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(path))
    with pytest.raises(
        StorageUnavailableError,
        match=rf"^{path}: no certificates .* Correct or unset REQUESTS_CA_BUNDLE or CURL_CA_BUNDLE",
    ):
        GcsStorage().read("gs://data/a")
    assert described.requests["read"] == 0


def test_rejects_a_server_with_an_untrusted_certificate(described: FakeGcs, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):
        monkeypatch.delenv(name)
    # A wrong certificate is permanent: the read is not retried for the default 180 s.
    with pytest.raises(StorageUnavailableError, match=r"gs://data/a could not be read: SSLError: .*CERTIFICATE_VERIFY"):
        GcsStorage().read("gs://data/a")
    assert described.requests["read"] == 0
    # Nobody has seen the token.
    assert described.seen_authorization == set()


def test_loads_certificates_once_for_all_connections(described: FakeGcs, monkeypatch: pytest.MonkeyPatch) -> None:
    load, loaded = ssl.SSLContext.load_verify_locations, []

    def count(context: ssl.SSLContext, *places: str, **named: str) -> None:
        loaded.append(named)
        load(context, *places, **named)

    monkeypatch.setattr(ssl.SSLContext, "load_verify_locations", count)
    described.latency = 0.02
    gcs = GcsStorage()
    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(gcs.read, ["gs://data/a"] * 32)) == {b"data"}
    assert loaded == [{"cafile": os.environ["REQUESTS_CA_BUNDLE"]}]


def test_sends_a_proxy_its_password_and_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", "https://storage.test")
    with socket.create_server(("127.0.0.1", 0)) as proxy:
        # Without a scheme, which curl also accepts.
        monkeypatch.setenv("https_proxy", f"us%40er:pa%20ss@127.0.0.1:{proxy.getsockname()[1]}")
        with ThreadPoolExecutor(1) as pool:
            reading = pool.submit(GcsStorage(RetryPolicy(limit=0.001)).read, "gs://data/a")
            connection, _ = proxy.accept()
            with connection:
                head = connection.recv(1 << 16)
            with pytest.raises(StorageUnavailableError, match=r"gs://data/a could not be read: \w+: "):
                reading.result()
    assert head.startswith(b"CONNECT storage.test:443 HTTP/1.")
    assert b"Basic " + base64.b64encode(b"us@er:pa ss") in head


@pytest.mark.filterwarnings("ignore:SOCKS support in urllib3")
def test_names_the_package_for_a_socks_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", "https://storage.test")
    monkeypatch.setenv("https_proxy", "socks5h://user:secret@127.0.0.1:9")
    monkeypatch.delitem(sys.modules, "urllib3.contrib.socks", raising=False)
    monkeypatch.setitem(sys.modules, "socks", None)
    with pytest.raises(StorageUnavailableError, match=r"^a SOCKS proxy, .* Run: pip install pysocks"):
        GcsStorage().read("gs://data/a")


def test_retries_a_failing_token_server(described: FakeGcs) -> None:
    described.faults.add(Fault("503", "token"))
    assert GcsStorage().read("gs://data/a") == b"data"


def test_logs_and_errors_show_no_secrets(
    described: FakeGcs, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.DEBUG)
    gcs, hasty = GcsStorage(), GcsStorage(RetryPolicy(first_wait=0.01, limit=0.1))
    gcs.read("gs://data/a")
    with gcs.create("gs://data/new") as file:
        file.write(b"x" * 1000)
    said = []
    for kind in ("403", "401", "404"):
        described.faults.clear()
        described.faults.add(Fault(kind, "read", "data/a", count=None))
        with pytest.raises(StorageError) as found:
            hasty.read("gs://data/a")
        said.append(str(found.value))
    described.faults.clear()
    for kind in ("reset", "500", "404"):
        described.faults.clear()
        described.faults.add(Fault(kind, "part", count=None), Fault(kind, "status", count=None))
        with pytest.raises(StorageError) as found, hasty.create("gs://data/other") as file:
            file.write(b"x" * (2 << 20))
        said.append(str(found.value))
    described.faults.add(Fault("403", "token", count=None))
    with pytest.raises(StorageError) as found:
        GcsStorage().read("gs://data/a")
    said.append(str(found.value))
    check_quiet(described, caplog.text + "".join(said))


def test_adds_no_filters_to_library_loggers(described: FakeGcs) -> None:
    before = {name: list(logging.getLogger(name).filters) for name in list(logging.root.manager.loggerDict)}
    gcs = GcsStorage()
    with gcs.create("gs://data/new") as file:
        file.write(b"x" * (2 << 20))
    assert {name: logging.getLogger(name).filters for name in before} == before
    assert not logging.getLogger("urllib3.connectionpool").filters


def test_commands_print_and_store_no_secrets(described: FakeGcs, tmp_path: Path) -> None:
    described.put("data", "text/a.txt", b"a line\n" * 100)
    program = (
        "import logging, sys; logging.basicConfig(level=logging.DEBUG); from tpudata.cli import main; sys.exit(main())"
    )
    argv = ["convert", "text", "--input", "gs://data/text", "--output", "gs://data/out"]
    done = run("-c", program, *argv)
    assert done.returncode == 0, done.stderr
    assert "DEBUG" in done.stderr
    stored = b"".join(item.data for name, item in described.buckets["data"].items() if name.startswith("out/"))
    check_quiet(described, done.stdout + done.stderr + stored.decode(errors="replace"))


def check_quiet(store: FakeGcs, text: str) -> None:
    """Check that a text contains neither tokens nor the account's key."""
    shown = {seen.removeprefix("Bearer ") for seen in store.seen_authorization}
    assert shown >= {next(iter(shown))}
    lines = key(store)["private_key"].splitlines()
    for secret in (*shown, "secret-token", "secret-upload", lines[1], lines[-2]):
        assert secret not in text

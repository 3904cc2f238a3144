"""Kept connections to Google Cloud Storage, through the proxy and with the certificates that the environment names."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import requests
import urllib3
from requests.utils import DEFAULT_CA_BUNDLE_PATH
from urllib3.connection import HTTPConnection
from urllib3.util import create_urllib3_context, make_headers, parse_url

from tpudata.errors import StorageUnavailableError
from tpudata.storage.limits import MAX_READ_THREADS

# Header that carries the query of a URL through urllib3, which logs URLs; it is not sent.
HIDDEN_QUERY = "X-Tpudata-Query"


def open_pools(server: str) -> urllib3.PoolManager:
    """Return the connections to a server, with the proxy and the certificates that the environment names now.

    Raises:
        StorageUnavailableError: the certificates cannot be read, or a package that the proxy needs is missing.
    """
    # `requests` knows the variables for proxies and certificates.
    with requests.Session() as session:
        settings = session.merge_environment_settings(server, proxies={}, stream=None, verify=None, cert=None)
    proxy = settings["proxies"].get(urlsplit(server).scheme) or settings["proxies"].get("all")
    certificates_path = DEFAULT_CA_BUNDLE_PATH if settings["verify"] is True else settings["verify"]
    context = create_urllib3_context()
    try:
        if Path(certificates_path).is_dir():
            context.load_verify_locations(capath=certificates_path)
        else:
            context.load_verify_locations(cafile=certificates_path)
    except OSError as error:
        raise StorageUnavailableError(
            f"{certificates_path}: no certificates of authorities ({error}). Correct or unset REQUESTS_CA_BUNDLE or CURL_CA_BUNDLE."
        ) from error
    options: dict[str, Any] = {
        "num_pools": 1,
        # A thread may have two requests in flight, and each keeps its connection.
        "maxsize": 2 * MAX_READ_THREADS,
        # One context for all connections: loading a system's certificates takes 10 to 40 ms of CPU.
        "ssl_context": context,
        # TCP_NODELAY also through a proxy: otherwise a part waits 40 ms for an acknowledgement of its header.
        "socket_options": HTTPConnection.default_socket_options,
    }
    if not proxy:
        pools = urllib3.PoolManager(**options)
    elif proxy.startswith("socks"):
        pools = _open_socks_pools(proxy, options)
    else:
        proxy = proxy if "://" in proxy else f"http://{proxy}"
        user_and_password = parse_url(proxy).auth
        headers = make_headers(proxy_basic_auth=unquote(user_and_password)) if user_and_password else None
        pools = urllib3.ProxyManager(proxy, proxy_headers=headers, proxy_ssl_context=context, **options)
    pools.pool_classes_by_scheme = {
        scheme: _add_connection_class(pool_class) for scheme, pool_class in pools.pool_classes_by_scheme.items()
    }
    return pools


def _open_socks_pools(proxy: str, options: dict[str, Any]) -> urllib3.PoolManager:
    """Return the connections through a SOCKS proxy; StorageUnavailableError without the package that it needs."""
    try:
        from urllib3.contrib.socks import SOCKSProxyManager
    except ImportError:
        raise StorageUnavailableError(
            "a SOCKS proxy, which the environment names, needs PySocks. Run: pip install pysocks, or name another proxy."
        ) from None
    return SOCKSProxyManager(proxy, **options)


class _Connection:
    """Mixin for connections of urllib3 that take the query of a URL from a header.

    urllib3 logs URLs, and the id of an upload, which is in the query, is as good as a password for it.
    """

    def request(
        self, method: str, url: str, body: Any = None, headers: Mapping[str, str] | None = None, **options: Any
    ) -> None:
        """Send a request to `url` with the query from the header `HIDDEN_QUERY`, without that header."""
        sent_headers = dict(headers or {})
        query = sent_headers.pop(HIDDEN_QUERY, "")
        super().request(method, url + query, body, sent_headers, **options)  # type: ignore[misc]


def _add_connection_class(pool_class: Any) -> Any:
    """Return a subclass of a class of connection pools, whose connections are also `_Connection`s."""
    connection_class = type(pool_class.ConnectionCls.__name__, (_Connection, pool_class.ConnectionCls), {})
    return type(pool_class.__name__, (pool_class,), {"ConnectionCls": connection_class})

"""Connection to a TPU: find its address, connect within a time limit, and make a strategy for its cores.

The TPU is looked up in this order: the given resolver or address, the given name, the environment variable TPU_NAME, and the TPU of
this machine. A name is looked up in the given zone and project, or else gcloud's.
"""

import configparser
import contextlib
import importlib.util
import logging
import os
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import tensorflow as tf

from tpudata.estimator.api.errors import TPUConnectionError
from tpudata.estimator.config.run_config import RunConfig

_log = logging.getLogger("tpudata")
_T = TypeVar("_T")
_LOCAL = "local"
TIMEOUT = 300.0
_PROBE_TIMEOUT = 10.0
# Cores of a host of v2, v3, v5e and v6e; v4 and v5p have 4. Cloud TPU documentation, "TPU versions".
_MOST_CORES_OF_A_HOST = 8
_NEEDED_FOR_NAMES = (("googleapiclient", "google-api-python-client"), ("oauth2client", "oauth2client"))


@contextlib.contextmanager
def tpu_system(
    name: str | None = None, *, zone: str | None = None, project: str | None = None, timeout: float = TIMEOUT
) -> Iterator[Any]:
    """Connect to a TPU, initialise it, yield a `tf.distribute.TPUStrategy` for its cores, and shut it down afterwards.

    Args:
        name: name or address (grpc://HOST:PORT or HOST:PORT) of the TPU, or "local" for this machine's; None for the environment
            variable TPU_NAME, or else this machine's.
        zone: zone in which to look up a name; None for gcloud's.
        project: project in which to look up a name; None for gcloud's.
        timeout: seconds after which the lookup or the connection fails.

    Yields:
        The strategy.

    Raises:
        TPUConnectionError: nothing answered; the message names what was tried.
    """
    resolver = find_tpu(name, zone, project, timeout)
    strategy, is_new = connect(resolver, timeout)
    try:
        yield strategy
    finally:
        if is_new:  # Otherwise the code that connected still uses it.
            with _connecting:
                _connected.pop(resolver.master(), None)
            tf.tpu.experimental.shutdown_tpu_system(resolver)


def has_remote_hosts(config: RunConfig) -> bool:
    """Return whether other processes feed the TPU that a RunConfig names, without connecting to it."""
    named = config.master or config.tpu_name or os.environ.get("TPU_NAME")
    name = named if config.cluster is None else config.cluster.master()
    return name not in (None, "", _LOCAL) or (config.tpu_config.num_shards or 1) > _MOST_CORES_OF_A_HOST


def find_tpu(name: str | None, zone: str | None, project: str | None, timeout: float) -> Any:
    """Return the `TPUClusterResolver` of the TPU `name`; arguments as in `tpu_system`.

    Raises:
        TPUConnectionError: there is no such TPU, or it does not answer.
    """
    name = name or os.environ.get("TPU_NAME") or _LOCAL
    if ":" in name and "://" not in name:  # Names have no colon.
        name = f"grpc://{name}"
    make = tf.distribute.cluster_resolver.TPUClusterResolver
    if name == _LOCAL:
        return make(tpu=_LOCAL)
    if not name.startswith("grpc://"):
        zone = zone or _gcloud("compute", "zone")
        project = project or _gcloud("core", "project")
    what = f"TPU {name!r} (zone {zone or 'unknown'}, project {project or 'unknown'})"
    resolver, address = _within(timeout, what, lambda: _resolve(make, name, zone, project))
    _probe(what, address)
    return resolver


def _resolve(make: Callable[..., Any], name: str, zone: str | None, project: str | None) -> tuple[Any, str]:
    if not name.startswith("grpc://"):
        missing = [package for module, package in _NEEDED_FOR_NAMES if importlib.util.find_spec(module) is None]
        if missing:
            packages = " and ".join(missing)
            raise RuntimeError(
                f"TensorFlow looks up names with {packages}. Pass the address, or pip install {' '.join(missing)}."
            )
    resolver = make(tpu=name, zone=zone, project=project)
    return resolver, resolver.master()


def connect(resolver: Any, timeout: float) -> tuple[Any, bool]:
    """Connect to a TPU and initialise it, unless this process has done so.

    Returns:
        The `tf.distribute.TPUStrategy`, and whether the connection is new.

    Raises:
        TPUConnectionError: there is no TPU, or it does not answer in time.
    """
    address = resolver.master()
    what = f"TPU at {address}" if address else "TPU of this machine (there is no master, tpu_name or TPU_NAME)"

    def start() -> Any:
        if address:
            tf.config.experimental_connect_to_cluster(resolver)
        tf.tpu.experimental.initialize_tpu_system(resolver)
        return tf.distribute.TPUStrategy(resolver)

    with _connecting:
        if address not in _connected:
            _log.info("Connecting to the %s.", what)
            _connected[address] = _within(timeout, what, start)
            return _connected[address], True
        return _connected[address], False


# A process has one connection to a TPU, and initialising the TPU again destroys all variables on it.
_connected: dict[str, Any] = {}
_connecting = threading.Lock()


def _probe(what: str, address: str) -> None:
    """Check early that something listens at an address, as TensorFlow waits for a very long time."""
    host, _, port = address.removeprefix("grpc://").rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_PROBE_TIMEOUT).close()
    except (OSError, ValueError) as error:
        raise TPUConnectionError(f"{what}: nothing answers at {address!r} ({error}). {_FIX}") from error


_FIX = (
    "Name the TPU with RunConfig(master='grpc://HOST:8470'), RunConfig(tpu_name=..., zone=..., project=...) or the environment "
    "variable TPU_NAME, or run on a TPU VM; without a TPU pass use_tpu=False."
)


def _within(seconds: float, what: str, function: Callable[[], _T]) -> _T:
    """Call `function` in a thread that is abandoned if it takes longer, as a call that hangs in TensorFlow cannot be stopped."""
    results: list[_T] = []
    errors: list[Exception] = []

    def call() -> None:
        try:
            results.append(function())
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=call, name="tpudata-tpu", daemon=True)
    thread.start()
    thread.join(seconds)
    if results:
        return results[0]
    if errors:
        reason = str(errors[0]).splitlines()[0]
        raise TPUConnectionError(f"{what}: {reason} {_FIX}") from errors[0]
    raise TPUConnectionError(f"{what}: no answer within {seconds:g} seconds. {_FIX}")


def _gcloud(section: str, key: str) -> str | None:
    """Return a setting of the gcloud command, from the environment or its active configuration.

    Raises:
        TPUConnectionError: the file of the configuration cannot be read.
    """
    given = os.environ.get(f"CLOUDSDK_{section}_{key}".upper())
    if given:
        return given
    folder = Path(os.environ.get("CLOUDSDK_CONFIG") or Path.home() / ".config" / "gcloud")
    active = folder / "active_config"
    name = os.environ.get("CLOUDSDK_ACTIVE_CONFIG_NAME") or (
        active.read_text().strip() if active.is_file() else "default"
    )
    settings = configparser.ConfigParser(interpolation=None)
    path = folder / "configurations" / f"config_{name}"
    try:
        settings.read(path)
    except (configparser.Error, UnicodeDecodeError) as error:
        reason = str(error).splitlines()[0]
        raise TPUConnectionError(
            f"gcloud's configuration {path} cannot be read: {reason} Pass the zone and the project of the TPU, or fix the file."
        ) from error
    return settings.get(section, key, fallback=None)

"""The workers of this machine's TPU pod, from the variables or the TPU VM's metadata in which jax also finds them."""

import os
import urllib.request
from pathlib import Path

from tpudata.devices.processes.process_group import ProcessGroup
from tpudata.errors import UsageError

# The port at which jax's own detection lets the workers of a pod meet.
_PORT = 8482
_METADATA = "http://{host}/computeMetadata/v1/instance/attributes/{key}"
_TIMEOUT_SECONDS = 10.0
# PCI vendor number of Google.
_VENDOR = "0x1ae0"
# PCI device numbers of v2 and v3, a chip without a public name, v4, v5p, v5e, v6e and v7x, as in jax; Google's network cards have
# the same vendor number.
_CHIPS = ("0x0027", "0x0056", "0x005e", "0x0062", "0x0063", "0x006f", "0x0076")


def count_chips(devices: Path = Path("/sys/bus/pci/devices")) -> int:
    """Return the number of TPU chips on this machine's PCI bus, without opening them."""
    device_folders = [path.parent for path in devices.glob("*/vendor") if path.read_text().strip() == _VENDOR]
    return sum((path / "device").read_text().strip() in _CHIPS for path in device_folders)


def find_pod_group() -> ProcessGroup | None:
    """Return the workers of the pod to which this machine belongs; None without a TPU, or with a TPU of one host.

    Raises:
        UsageError: the pod has several slices.
    """
    if os.environ.get("TPU_PROCESS_BOUNDS", os.environ.get("TPU_HOST_BOUNDS")) == "1,1,1":
        return None  # The program uses only this host's chips.
    if os.environ.get("MEGASCALE_NUM_SLICES", "1") != "1":
        raise UsageError(
            f"TPU pod: several slices are not supported (got MEGASCALE_NUM_SLICES={os.environ['MEGASCALE_NUM_SLICES']}, expected "
            "1). Use one slice."
        )
    endpoints = os.environ.get("TPU_PROCESS_ADDRESSES") or os.environ.get("TPU_WORKER_HOSTNAMES")
    worker_id = os.environ.get("TPU_WORKER_ID")
    if not endpoints and count_chips() and "TPU_SKIP_MDS_QUERY" not in os.environ:
        endpoints, worker_id = _fetch_metadata("worker-network-endpoints"), _fetch_metadata("agent-worker-number")
    hosts = [_parse_host(endpoint) for endpoint in (endpoints or "").split(",")]
    # With one host, or settings that do not name one worker of several, the program uses only this machine's chips.
    if len(hosts) < 2 or not worker_id or not worker_id.isdecimal() or int(worker_id) >= len(hosts):
        return None
    names = tuple(f"worker {index} ({host})" for index, host in enumerate(hosts))
    return ProcessGroup("TPU pod", f"{hosts[0]}:{_PORT}", names, int(worker_id))


def _parse_host(endpoint: str) -> str:
    """Return the host of HOST, HOST:PORT or, in the metadata, NAME:NUMBER:HOST."""
    fields = endpoint.split(":")
    return fields[2] if len(fields) == 3 else fields[0]


def _fetch_metadata(attribute: str) -> str | None:
    """Return the value of an attribute of this VM from Google's metadata server; None without the server or the attribute."""
    url = _METADATA.format(host=os.environ.get("GCE_METADATA_IP", "metadata.google.internal"), key=attribute)
    request = urllib.request.Request(url, headers={"Metadata-Flavor": "Google"})
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_SECONDS) as response:
            return str(response.read().decode())
    except OSError:  # Includes URLError and HTTPError.
        return None

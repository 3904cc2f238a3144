"""The workers of a TPU pod, from its machines' variables and metadata."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from tpudata.devices.processes import tpu_pod
from tpudata.devices.processes.process_group import ProcessGroup
from tpudata.devices.processes.tpu_pod import count_chips, find_pod_group
from tpudata.errors import UsageError

VARIABLES = (
    "TPU_PROCESS_BOUNDS",
    "TPU_HOST_BOUNDS",
    "TPU_PROCESS_ADDRESSES",
    "TPU_WORKER_HOSTNAMES",
    "TPU_WORKER_ID",
    "TPU_SKIP_MDS_QUERY",
    "MEGASCALE_NUM_SLICES",
)
TWO = {"TPU_WORKER_HOSTNAMES": "host-a,host-b", "TPU_WORKER_ID": "1"}


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def metadata(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """A machine with TPU chips, whose metadata has these attributes."""
    attributes: dict[str, str] = {}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            assert self.headers["Metadata-Flavor"] == "Google"
            value = attributes.get(self.path.rpartition("/")[2])
            self.send_response(404 if value is None else 200)
            self.end_headers()
            self.wfile.write((value or "").encode())

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("GCE_METADATA_IP", f"127.0.0.1:{server.server_port}")
        monkeypatch.setattr(tpu_pod, "count_chips", lambda: 4)
        yield attributes
        server.shutdown()


def test_finds_the_workers_by_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in TWO.items():
        monkeypatch.setenv(name, value)
    assert find_pod_group() == ProcessGroup("TPU pod", "host-a:8482", ("worker 0 (host-a)", "worker 1 (host-b)"), 1)


@pytest.mark.parametrize("endpoints", ["10.0.0.1,10.0.0.2", "w0:0:10.0.0.1,w1:1:10.0.0.2"], ids=["hosts", "triples"])
def test_finds_the_workers_by_metadata(endpoints: str, metadata: dict[str, str]) -> None:
    metadata |= {"worker-network-endpoints": endpoints, "agent-worker-number": "0"}
    assert find_pod_group() == ProcessGroup(
        "TPU pod", "10.0.0.1:8482", ("worker 0 (10.0.0.1)", "worker 1 (10.0.0.2)"), 0
    )


@pytest.mark.parametrize("attributes", [{}, {"worker-network-endpoints": "10.0.0.1", "agent-worker-number": "0"}])
def test_metadata_of_one_host_give_no_pod(attributes: dict[str, str], metadata: dict[str, str]) -> None:
    metadata |= attributes
    assert find_pod_group() is None


@pytest.mark.parametrize(
    "variables",
    [{}, {"TPU_WORKER_HOSTNAMES": "localhost", "TPU_WORKER_ID": "0"}, {**TWO, "TPU_PROCESS_BOUNDS": "1,1,1"}],
    ids=["none", "one", "alone"],
)
def test_variables_of_one_host_give_no_pod(variables: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GCE_METADATA_IP", "127.0.0.1:1")  # which must not be contacted
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert find_pod_group() is None


def test_rejects_several_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEGASCALE_NUM_SLICES", "2")
    with pytest.raises(
        UsageError, match=r"several slices are not supported \(got MEGASCALE_NUM_SLICES=2, expected 1\)"
    ):
        find_pod_group()


def test_counts_chips_but_no_other_devices(tmp_path: Path) -> None:
    for number, (vendor, device) in enumerate([("0x1ae0", "0x0063"), ("0x1ae0", "0x0042"), ("0x8086", "0x0063")]):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "vendor").write_text(f"{vendor}\n")
        (folder / "device").write_text(f"{device}\n")
    assert count_chips(tmp_path) == 1
    assert count_chips(tmp_path / "absent") == 0

"""Slices by name, compared with libtpu and the tables of the Cloud TPU documentation."""

import json
import os
import subprocess
import sys

import pytest

from tests.helpers.libtpu import needs_libtpu
from tpudata.devices.tpu_compiler.topologies import CHIPS, find_slice
from tpudata.errors import UsageError


@pytest.mark.parametrize(
    ("name", "topology", "chips", "replicas", "hosts"),
    [
        ("v5e-8", "v5e:2x4", 8, 8, 1),
        ("v5litepod-16", "v5e:4x4", 16, 16, 4),
        ("V6E-4", "v6e:2x2", 4, 4, 1),
        ("v6e-256", "v6e:16x16", 256, 256, 64),
        ("v4-8", "v4:2x2x1", 4, 4, 1),
        ("v4-64", "v4:2x4x4", 32, 32, 8),
        ("v5p-16", "v5p:2x2x2", 8, 8, 2),
        ("v3-8", "v3:2x2", 4, 8, 1),
        ("tpu7x-8", "tpu7x:2x2x1", 4, 8, 1),
    ],
)
def test_finds_a_slice_by_its_name(name: str, topology: str, chips: int, replicas: int, hosts: int) -> None:
    found = find_slice(name, "--tpu")
    assert (found.topology, found.chips, found.replicas, found.hosts) == (topology, chips, replicas, hosts)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("v5e-9", "--tpu: there is no TPU 'v5e-9' .*v5e-256.* Did you mean 'v5e-8'"),
        ("v4-4", "Did you mean 'v4-8'"),
        ("v5f-8", "Did you mean 'v5e-8'"),
        ("v5litepod", "expected a generation and its size, such as v3-8, v4-8"),
        ("", "there is no TPU ''"),
    ],
)
def test_rejects_unknown_names_and_suggests_the_nearest(name: str, text: str) -> None:
    with pytest.raises(UsageError, match=text):
        find_slice(name, "--tpu")


def test_devices_share_their_chip() -> None:
    v3, v5p = CHIPS["v3"], CHIPS["v5p"]
    assert (v3.device_hbm, v3.device_flops, v3.device_bandwidth) == (16 * 2**30, 61.5e12, 450e9)
    assert (v5p.device_hbm, v5p.device_flops, v5p.device_bandwidth) == (95 * 2**30, 459e12, 2765e9)


# Prints the devices and hosts of each request.
PROGRAM = """
import json, sys
from jax.experimental.topologies import get_topology_desc
found = []
for topology, options in json.loads(sys.argv[1]):
    devices = get_topology_desc(topology, "tpu", **options).devices
    found.append([len(devices), len({device.process_index for device in devices})])
print(json.dumps(found))
"""


@needs_libtpu
def test_libtpu_knows_all_slices() -> None:
    slices = [
        find_slice(f"{chip.name}-{count * chip.cores}", "test") for chip in CHIPS.values() for count in chip.shapes
    ]
    requests = json.dumps([(item.topology, item.topology_options) for item in slices])
    environment = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "TPU_SKIP_MDS_QUERY": "1",
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
        "TPU_LOG_DIR": "disabled",
    }
    environment.pop("XLA_FLAGS", None)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, requests], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [[item.replicas, item.hosts] for item in slices]

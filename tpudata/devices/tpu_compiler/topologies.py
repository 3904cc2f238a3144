"""TPU slices by name, such as v5e-8: chips, hosts, published peaks, and the name that libtpu compiles for."""

import dataclasses
import re
from collections.abc import Mapping
from types import MappingProxyType

from tpudata.console.nearest import did_you_mean
from tpudata.errors import UsageError

GIB = 2**30
_DOCS = "https://docs.cloud.google.com/tpu/docs"
_NAME = re.compile(r"(?P<generation>[a-z0-9]+)-(?P<size>[0-9]+)")
# The accelerator type of Cloud TPU's API for a v5e.
_OTHER_NAMES = {"v5litepod": "v5e"}
# Shapes of slices, by number of chips.
_SQUARES = {1: (1, 1), 4: (2, 2), 8: (2, 4), 16: (4, 4), 32: (4, 8), 64: (8, 8), 128: (8, 16), 256: (16, 16)}
_CUBES = {
    4: (2, 2, 1),
    8: (2, 2, 2),
    16: (2, 2, 4),
    32: (2, 4, 4),
    64: (4, 4, 4),
    128: (4, 4, 8),
    256: (4, 8, 8),
    512: (8, 8, 8),
    1024: (8, 8, 16),
    2048: (8, 16, 16),
}
_LARGE_SQUARES = {4: (2, 2), 16: (4, 4), 64: (8, 8), 128: (8, 16), 256: (16, 16), 512: (16, 32), 1024: (32, 32)}


@dataclasses.dataclass(frozen=True)
class Chip:
    """A generation of TPU chips, with the peaks that Google publishes.

    Attributes:
        name: name of the generation, as in names of slices.
        flops: bfloat16 operations a second.
        bandwidth: bytes a second between the chip and its HBM.
        hbm: bytes of HBM.
        shapes: shapes of slices by number of chips.
        source: page of the Cloud TPU documentation with these numbers.
        cores: number that a chip adds to the size in a slice's name: its TensorCores, or 1 if names count chips.
        devices: devices of jax, and so replicas, on a chip.
        config: libtpu's configuration of the chip; None for its default.
    """

    name: str
    flops: float
    bandwidth: float
    hbm: int
    shapes: Mapping[int, tuple[int, ...]]
    source: str
    cores: int = 1
    devices: int = 1
    config: str | None = None

    @property
    def device_hbm(self) -> int:
        """Bytes of HBM for one device."""
        return self.hbm // self.devices

    @property
    def device_flops(self) -> float:
        """Operations a second of one device."""
        return self.flops / self.devices

    @property
    def device_bandwidth(self) -> float:
        """Bytes a second between one device and its HBM."""
        return self.bandwidth / self.devices


def _make_chip(
    name: str,
    teraflops: float,
    gigabytes: float,
    gib: int,
    shapes: Mapping[int, tuple[int, ...]],
    *,
    cores: int = 1,
    devices: int = 1,
    config: str | None = None,
) -> Chip:
    """Return a chip, with its peaks and its HBM converted to the units of Chip.

    Args:
        name: name of the generation.
        teraflops: peak of bfloat16 operations, in 10**12 a second.
        gigabytes: peak of bytes between the chip and its HBM, in 10**9 a second.
        gib: GiB of HBM.
        shapes: shapes of slices by number of chips.
        cores: number that a chip adds to the size in a slice's name.
        devices: devices of jax on a chip.
        config: libtpu's configuration of the chip; None for its default.
    """
    source = f"{_DOCS}/{name}"
    return Chip(name, teraflops * 1e12, gigabytes * 1e9, gib * GIB, shapes, source, cores, devices, config)


# The numbers are a chip's peak TFLOP/s (bfloat16), GB/s, and GiB of HBM.
CHIPS: Mapping[str, Chip] = MappingProxyType(
    {
        chip.name: chip
        for chip in (
            _make_chip("v3", 123, 900, 32, _LARGE_SQUARES, cores=2, devices=2),
            # One device computes with both cores of a chip.
            _make_chip("v4", 275, 1200, 32, _CUBES, cores=2, config="megacore"),
            _make_chip("v5e", 197, 819, 16, _SQUARES),
            _make_chip("v5p", 459, 2765, 95, _CUBES, cores=2),
            _make_chip("v6e", 918, 1638, 32, _SQUARES),
            _make_chip("tpu7x", 2307, 7380, 192, _CUBES, cores=2, devices=2),
        )
    }
)


@dataclasses.dataclass(frozen=True)
class TPUSlice:
    """Chips that run one program together.

    Attributes:
        name: name of the slice, such as v5e-8.
        chip: generation of the chips.
        chips: number of chips.
    """

    name: str
    chip: Chip
    chips: int

    @property
    def replicas(self) -> int:
        """Number of devices, each of which is a replica."""
        return self.chips * self.chip.devices

    @property
    def hosts(self) -> int:
        """Number of TPU VMs: one for a v5e or v6e slice of up to 8 chips, else one for each 4 chips."""
        return -(-self.chips // self._chips_per_host)  # Rounded up.

    @property
    def topology(self) -> str:
        """Name of its topology in libtpu, such as v5e:2x4."""
        return f"{self.chip.name}:{'x'.join(map(str, self.chip.shapes[self.chips]))}"

    @property
    def topology_options(self) -> dict[str, object]:
        """Keyword arguments of `jax.experimental.topologies.get_topology_desc`."""
        # Bounds have three dimensions, and a shape has two or three. In a slice of several hosts, each has a square of 4 chips.
        bounds = (*self.chip.shapes[self.chips], 1)[:3] if self.hosts == 1 else (2, 2, 1)
        options: dict[str, object] = {"chips_per_host_bounds": list(bounds)}
        return options if self.chip.config is None else {**options, "chip_config_name": self.chip.config}

    @property
    def _chips_per_host(self) -> int:
        # Only v5e and v6e have these shapes.
        return 8 if self.chip.shapes is _SQUARES and self.chips <= 8 else 4


def find_slice(name: str, where: str) -> TPUSlice:
    """Return the slice with a name, such as v5e-8, v4-8 or v5litepod-16.

    The number counts chips for v5e and v6e, and TensorCores, two for a chip, for other generations, as in the names of Cloud TPU.

    Args:
        name: generation and size, in upper or lower case.
        where: the argument or flag that passes the name, for the message.

    Raises:
        UsageError: no slice has this name; the message names some that exist.
    """
    match = _NAME.fullmatch(name.strip().lower())
    generation = "" if match is None else _OTHER_NAMES.get(match["generation"], match["generation"])
    if match is None or generation not in CHIPS:
        examples = [f"{chip.name}-8" for chip in CHIPS.values()]
        raise UsageError(
            f"{where}: there is no TPU {name!r} (expected a generation and its size, such as {', '.join(examples)})."
            f"{did_you_mean(name, examples)}"
        )
    chip, size = CHIPS[generation], int(match["size"])
    sizes = [num_chips * chip.cores for num_chips in chip.shapes]
    if size not in sizes:
        nearest = min(sizes, key=lambda possible_size: abs(possible_size - size))
        slice_names = ", ".join(f"{chip.name}-{possible_size}" for possible_size in sizes)
        raise UsageError(
            f"{where}: there is no TPU {name!r} (expected {slice_names}). Did you mean '{chip.name}-{nearest}'?"
        )
    return TPUSlice(f"{chip.name}-{size}", chip, size // chip.cores)

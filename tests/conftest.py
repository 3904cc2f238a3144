"""Fixtures that the tests of several modules share, and which tests scripts/check runs."""

from __future__ import annotations

import collections
import gc
import os
from pathlib import Path

import pytest
from hypothesis import settings

from tests.helpers.kinds import kinds_of

# Tests ask whether XLA compiles a step and what it computes. Machine code that is fast, of several threads or of MLIR's emitters
# takes three times as long to make. TensorFlow and jax both read this.
_XLA_FLAGS = (
    "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
)
os.environ.setdefault("XLA_FLAGS", _XLA_FLAGS)

# Before jax is imported: it has as many CPU devices as a test asks for at most, and looks for no others.
os.environ.setdefault("JAX_NUM_CPU_DEVICES", "8")
os.environ.setdefault("JAX_PLATFORMS", "cpu")

# An example takes as long as the machine is busy.
settings.register_profile("tpudata", deadline=None)
settings.load_profile("tpudata")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add --quick."""
    parser.addoption(
        "--quick",
        action="store_true",
        help="only files of tests without a kind of tests/helpers/kinds.py, and smoke tests",
    )


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Skip files of tests that take long."""
    if not config.getoption("--quick") or collection_path.suffix != ".py" or collection_path.name == "test_smoke.py":
        return None
    return True if kinds_of(collection_path) else None


def pytest_collectstart() -> None:
    """Collect no garbage while test files import TensorFlow, of whose time it takes a fifth."""
    gc.disable()


# First, since pytest deselects by markers in this step, too.
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark tests by their kinds and as parts of a matrix, and let several processes begin with the files that take longest."""
    cases: collections.Counter[tuple[Path, str]] = collections.Counter()
    for item in items:
        for kind in kinds_of(item.path):
            item.add_marker(kind)
        marker = item.get_closest_marker("cases")
        if marker is not None and item.get_closest_marker("matrix") is None:
            test = (item.path, item.nodeid.partition("[")[0])
            cases[test] += 1
            if cases[test] > marker.args[0]:
                item.add_marker("matrix")
    if hasattr(config, "workerinput"):
        # Files of more kinds take longer, and the others fill the time in which one process would wait for another.
        items.sort(key=lambda item: -len(kinds_of(item.path)))


def pytest_collection_finish() -> None:
    """Freeze what imports have made: the collector's rounds through a million objects take a tenth of the time otherwise."""
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session")
def digits_dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """200 training and 90 validation digits, two shards each; read it, and change nothing."""
    from tests.helpers.digits import write_digits

    return write_digits(tmp_path_factory.mktemp("digits"), {"train": 200, "validation": 90}, shards=2)

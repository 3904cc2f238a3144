"""The rooms of tpudata/estimator import downwards."""

from tests.helpers.rooms import upward_imports

# The modules of a room import only from the room and from those before it.
ROOMS = (
    "api",
    "config",
    "graph",
    "state",
    "fetching",
    "feeding",
    "tracing",
    "steps",
    "hooks",
    "loops",
    "export",
    "tpu_check",
    "",
)


def test_imports_run_downwards() -> None:
    assert upward_imports("tpudata.estimator", ROOMS) == []

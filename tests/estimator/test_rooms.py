"""The rooms of tpudata/estimator import downwards."""

import itertools

from tests.helpers.rooms import imports, modules_of

# Each room imports, with its modules, from itself and from those before it.
ROOMS = (
    "api",
    "config",
    "graph",
    "devices",
    "state",
    "fetching",
    "feeding",
    "tracing",
    "steps",
    "spmd",
    "system",
    "hooks",
    "loops",
    "export",
    "tpu_check",
    "",
)
MOST_MODULES = 12
MODULES = modules_of("tpudata.estimator")


def room_of(name: str) -> str:
    """Return the folder that a module, or a name in it, is in; the empty string for those of the estimator itself."""
    part = name.removeprefix("tpudata.estimator").strip(".").partition(".")[0]
    return part if part in ROOMS else ""


def test_imports_run_downwards() -> None:
    assert {room_of(module) for module in MODULES} == set(ROOMS)
    wrong = [
        f"{module} imports {item.name}"
        for module, path in MODULES.items()
        for item in imports(path)
        if item.is_eager
        and item.name.startswith("tpudata.estimator.")
        and ROOMS.index(room_of(item.name)) > ROOMS.index(room_of(module))
    ]
    assert wrong == []


def test_rooms_are_small() -> None:
    paths = sorted(path for path in MODULES.values() if path.stem != "__init__")
    rooms = {folder: list(files) for folder, files in itertools.groupby(paths, key=lambda path: path.parent)}
    assert {folder: files for folder, files in rooms.items() if len(files) > MOST_MODULES} == {}

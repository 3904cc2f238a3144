"""The rooms of tpudata/devices import downwards, and import no user of devices."""

from tests.helpers.rooms import imports, modules_of, upward_imports

ROOMS = ("errors", "processes", "graphs", "spmd", "batches", "tpu_compiler", "system", "")


def test_imports_run_downwards() -> None:
    assert upward_imports("tpudata.devices", ROOMS) == []


def test_no_room_imports_the_estimator_or_its_callers() -> None:
    names = {item.name for path in modules_of("tpudata.devices").values() for item in imports(path)}
    assert {name for name in names if name.startswith(("tpudata.estimator", "tpudata.train", "tpudata.input"))} == set()

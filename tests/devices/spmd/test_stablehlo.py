"""The private parts of jax that carry a TensorFlow module: a failing test names what a new version changed."""

from __future__ import annotations

import importlib
from typing import Any

import jax
import numpy as np
import pytest
import tensorflow as tf

from tpudata.devices.spmd.stablehlo import JAX_VERSIONS, check_jax_version, export_module
from tpudata.errors import UsageError

DOORS = {
    "jax": ("__version_info__", "enable_x64", "shard_map", "make_array_from_single_device_arrays"),
    "jax.export": ("Exported", "export", "DisabledSafetyCheck.platform"),
    "jax.interpreters.mlir": ("make_ir_context",),
    "jaxlib.mlir.ir": ("Module.parse", "Attribute.parse", "UnitAttr.get", "WalkResult.ADVANCE"),
    "jaxlib.mlir.dialects.stablehlo": ("serialize_portable_artifact", "get_current_version"),
}


@pytest.mark.parametrize("module", DOORS)
def test_jax_has_the_private_names_we_use(module: str) -> None:
    for door in DOORS[module]:
        found: Any = importlib.import_module(module)
        for name in door.split("."):
            assert hasattr(found, name), f"jax {jax.__version__} has no {module}.{door}, which spmd/stablehlo.py needs"
            found = getattr(found, name)


def test_an_exported_module_can_be_replaced() -> None:
    exported = jax.export.export(jax.jit(lambda x: x))(np.float32(1))
    assert {"mlir_module_serialized", "in_avals", "out_avals"} <= {*exported.__dataclass_fields__}


def module_of(function: Any, *specs: Any) -> bytes:
    compiled = tf.function(function, jit_compile=True, autograph=False)
    text: bytes = compiled.experimental_get_compiler_ir(*specs)(stage="stablehlo_serialized")
    return text


@pytest.mark.parametrize(
    "dtype",
    [
        "bool",
        "int8",
        "int32",
        "int64",
        "uint8",
        "uint32",
        "uint64",
        "bfloat16",
        "float16",
        "float32",
        "float64",
        "complex64",
    ],
)
def test_modules_keep_shapes_and_dtypes(dtype: str) -> None:
    module = export_module(module_of(lambda x: [tf.identity(x), tf.stack([x, x])], tf.TensorSpec([3], dtype)))
    expected = tf.as_dtype(dtype).as_numpy_dtype
    assert [(item.shape, item.dtype) for item in module.arguments] == [((3,), expected)]
    assert [(item.shape, item.dtype) for item in module.results] == [((3,), expected), ((2, 3), expected)]
    value = np.array([0, 1, 1], expected)
    with jax.enable_x64(True):
        returned = jax.jit(module.exported.call)(value)
    np.testing.assert_array_equal(np.asarray(returned[1]), [value, value])


def test_maps_results_to_the_arguments_they_update() -> None:
    first, second = tf.Variable(1.0), tf.Variable([2.0])

    def function(x: Any) -> Any:
        second.assign_add([x])
        return [first * x, first.assign(x)]

    module = export_module(module_of(function, tf.TensorSpec([])))
    shapes = {number: module.results[number].shape for number in module.updates}
    assert sorted(shapes.values()) == [(), (1,)]
    assert {number: module.arguments[argument].shape for number, argument in module.updates.items()} == shapes


@pytest.mark.parametrize("version", [(0, 10, 1), JAX_VERSIONS[1]])
def test_rejects_other_versions_of_jax(version: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    check_jax_version()
    monkeypatch.setattr(jax, "__version_info__", version)
    monkeypatch.setattr(jax, "__version__", ".".join(map(str, version)))
    with pytest.raises(UsageError) as caught:
        export_module(b"")
    assert str(caught.value) == (
        f"jax: several devices need another version (got {jax.__version__}, expected >=0.10.2,<0.13.0). Run: "
        "pip install 'jax>=0.10.2,<0.13.0'."
    )

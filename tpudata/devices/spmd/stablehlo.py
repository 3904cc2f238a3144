"""StableHLO modules of TensorFlow as `jax.export.Exported`.

jax publishes no way to call a module that another compiler has written. `jax.export` serializes modules in StableHLO's portable
format, so TensorFlow's module replaces the module of an exported stand-in function with the same arguments and results.

Only this file uses private parts of jax: the MLIR bindings of jaxlib (`jaxlib.mlir`), and the context with jax's dialects.

TensorFlow's module differs from what jax calls in three ways, which `export_module` changes:

- `mhlo.copy` is not an operation of StableHLO; its operand replaces it.
- Under `shard_map` devices are partitions, not replicas, so collectives need a channel and global device numbers.
- The attribute `mhlo.input_output_alias` states which result is the new value of which argument; jax donates arguments itself.
"""

import dataclasses
import re
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax import export
from jax.interpreters import mlir
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from tpudata.errors import UsageError

# Tested versions of jax: from the first to below the second.
JAX_VERSIONS = ((0, 10, 2), (0, 13, 0))
_COLLECTIVES = ("stablehlo.all_reduce", "stablehlo.all_gather", "stablehlo.all_to_all", "stablehlo.reduce_scatter")
_NUMBER_TYPE = re.compile(r"(ui|i|f|bf)(\d+)|complex<f(\d+)>")


@dataclasses.dataclass(frozen=True)
class ExportedModule:
    """A module that jax can call.

    Attributes:
        exported: the module; `exported.call` takes `arguments` and returns a tuple of `results`.
        arguments: shapes and dtypes of the arguments.
        results: shapes and dtypes of the results.
        updates: for results that are new values of arguments, the index of the argument by the index of the result.
    """

    exported: export.Exported
    arguments: tuple[jax.ShapeDtypeStruct, ...]
    results: tuple[jax.ShapeDtypeStruct, ...]
    updates: dict[int, int]


def export_module(serialized: bytes) -> ExportedModule:
    """Convert a module that TensorFlow serialized with `experimental_get_compiler_ir(...)(stage="stablehlo_serialized")`.

    Raises:
        UsageError: this version of jax is not supported.
    """
    check_jax_version()
    with mlir.make_ir_context():
        module = ir.Module.parse(serialized)
        operations: list[Any] = list(module.body.operations)
        (main,) = (operation for operation in operations if operation.name.value == "main")
        arguments = tuple(map(_make_spec, main.type.inputs))
        results = tuple(map(_make_spec, main.type.results))
        updates = _find_updates(module)
        _adapt_to_shard_map(module)
        artifact = stablehlo.serialize_portable_artifact(module, stablehlo.get_current_version())
    # Exporting a function of the same arguments and results fills in the fields of an Exported that are not replaced below.
    with jax.enable_x64(True):
        stand_in = jax.jit(
            lambda *_: tuple(jax.numpy.zeros(spec.shape, spec.dtype) for spec in results), keep_unused=True
        )
        any_platform = [export.DisabledSafetyCheck.platform()]
        template = export.export(stand_in, platforms=["cpu"], disabled_checks=any_platform)(*arguments)
    exported = dataclasses.replace(template, mlir_module_serialized=artifact)
    return ExportedModule(exported, arguments, results, updates)


def check_jax_version() -> None:
    """Check that the version of jax is supported.

    Raises:
        UsageError: the version is not in JAX_VERSIONS.
    """
    first, end = JAX_VERSIONS
    if not first <= jax.__version_info__ < end:
        allowed = f">={_join_version(first)},<{_join_version(end)}"
        raise UsageError(
            f"jax: several devices need another version (got {jax.__version__}, expected {allowed}). Run: "
            f"pip install 'jax{allowed}'."
        )


def _join_version(version: Sequence[int]) -> str:
    return ".".join(map(str, version))


def _find_updates(module: ir.Module) -> dict[int, int]:
    """Return, for results that are new values of arguments, the index of the argument by the result's; empty if there are none."""
    attributes = module.operation.attributes
    if "mhlo.input_output_alias" not in attributes:
        return {}
    updates = {}
    aliases: Any = attributes["mhlo.input_output_alias"]  # An array of dicts, which jaxlib's stubs do not declare.
    for alias in aliases:
        # The values are strings, such as "array<i64: 2>" and "3 : i64"; a lone result has no index.
        result_index = re.findall(r"-?\d+", str(alias["output_index"]).partition(":")[2])
        argument = int(str(alias["alias"]["parameter_number"]).partition(" ")[0])
        updates[int(result_index[0]) if result_index else 0] = argument
    return updates


def _adapt_to_shard_map(module: ir.Module) -> None:
    """Change the module, in place, to one that jax can call under `shard_map`.

    Operands replace their copies, collectives get a channel and global device numbers, and TensorFlow's attributes are removed.
    """
    copies: list[ir.Operation] = []
    collectives: list[ir.Operation] = []

    def visit(operation: ir.Operation) -> ir.WalkResult:
        """Collect an operation that has to change; the walk itself must not change the module."""
        if operation.name == "mhlo.copy":
            copies.append(operation)
        elif operation.name in _COLLECTIVES:
            collectives.append(operation)
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)
    for copy in copies:
        copy.results[0].replace_all_uses_with(copy.operands[0])
        copy.erase()
    for channel_number, collective in enumerate(collectives, 1):
        # Type 1 is a channel between devices.
        channel = f"#stablehlo.channel_handle<handle = {channel_number}, type = 1>"
        collective.attributes["channel_handle"] = ir.Attribute.parse(channel)
        collective.attributes["use_global_device_ids"] = ir.UnitAttr.get()
    for name in [name for name in module.operation.attributes if name.startswith("mhlo.")]:
        del module.operation.attributes[name]


def _make_spec(tensor_type: ir.RankedTensorType) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(tuple(tensor_type.shape), _parse_dtype(str(tensor_type.element_type)))


def _parse_dtype(name: str) -> np.dtype[np.generic]:
    """Return the NumPy dtype of an MLIR type name, such as "bf16" or "complex<f32>".

    Raises:
        ValueError: the type is unknown.
    """
    if name == "i1":
        return np.dtype(bool)
    match = _NUMBER_TYPE.fullmatch(name)
    if match is None:
        raise ValueError(f"StableHLO: unknown type of a tensor's values, {name}.")
    letters, bits, complex_bits = match.groups()
    if complex_bits is not None:
        return np.dtype(f"complex{2 * int(complex_bits)}")
    if letters == "bf":
        bfloat16: np.dtype[np.generic] = jax.numpy.bfloat16.dtype
        return bfloat16
    return np.dtype({"ui": "uint", "i": "int", "f": "float"}[letters] + bits)

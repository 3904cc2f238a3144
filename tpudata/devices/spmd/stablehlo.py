"""The only door to private parts of jax: a StableHLO module of TensorFlow as a `jax.export.Exported`.

jax publishes no way to call a module that another compiler has written. `jax.export` serialises modules in StableHLO's portable
format, so a module takes the place of the one in an exported stand-in function with the same arguments and results. Private are
the MLIR bindings of jaxlib (`jaxlib.mlir`) and the context with jax's dialects.

TensorFlow's module differs from what jax calls in three ways, which `export_module` changes:

- `mhlo.copy` is no operation of StableHLO; it stands for its operand.
- Under `shard_map` devices are partitions, not replicas, so collectives need a channel and global device numbers.
- The attribute `mhlo.input_output_alias` tells which result is the new value of which argument; jax donates arguments itself.
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

# Versions of jax that this module was run with: from the first to below the second.
JAX_VERSIONS = ((0, 10, 2), (0, 13, 0))
_COLLECTIVES = ("stablehlo.all_reduce", "stablehlo.all_gather", "stablehlo.all_to_all", "stablehlo.reduce_scatter")
_NUMBER = re.compile(r"(ui|i|f|bf)(\d+)|complex<f(\d+)>")


@dataclasses.dataclass(frozen=True)
class ExportedModule:
    """A module that jax can call.

    Attributes:
        exported: the module; `exported.call` takes `arguments` and returns a tuple of `results`.
        arguments: shapes and dtypes of the arguments.
        results: shapes and dtypes of the results.
        updates: number of the argument by number of the result that is its new value.
    """

    exported: export.Exported
    arguments: tuple[jax.ShapeDtypeStruct, ...]
    results: tuple[jax.ShapeDtypeStruct, ...]
    updates: dict[int, int]


def export_module(serialized: bytes) -> ExportedModule:
    """Return the module that `experimental_get_compiler_ir(...)(stage="stablehlo_serialized")` has written.

    Raises:
        UsageError: jax has a version that this module was not run with.
    """
    require_version()
    with mlir.make_ir_context():
        module = ir.Module.parse(serialized)
        operations: list[Any] = list(module.body.operations)
        (main,) = (item for item in operations if item.name.value == "main")
        arguments, results = (tuple(map(_struct, types)) for types in (main.type.inputs, main.type.results))
        updates = _updates(module)
        _rewrite(module)
        artifact = stablehlo.serialize_portable_artifact(module, stablehlo.get_current_version())
    with jax.enable_x64(True):
        stand_in = jax.jit(
            lambda *_: tuple(jax.numpy.zeros(item.shape, item.dtype) for item in results), keep_unused=True
        )
        any_platform = [export.DisabledSafetyCheck.platform()]
        template = export.export(stand_in, platforms=["cpu"], disabled_checks=any_platform)(*arguments)
    exported = dataclasses.replace(template, mlir_module_serialized=artifact)
    return ExportedModule(exported, arguments, results, updates)


def require_version() -> None:
    """Check the version of jax.

    Raises:
        UsageError: this module was not run with it.
    """
    first, end = JAX_VERSIONS
    if not first <= jax.__version_info__ < end:
        allowed = f">={_dotted(first)},<{_dotted(end)}"
        raise UsageError(
            f"jax: several devices need another version (got {jax.__version__}, expected {allowed}). Run: "
            f"pip install 'jax{allowed}'."
        )


def _dotted(version: Sequence[int]) -> str:
    return ".".join(map(str, version))


def _updates(module: Any) -> dict[int, int]:
    attributes = module.operation.attributes
    if "mhlo.input_output_alias" not in attributes:
        return {}
    found = {}
    for entry in attributes["mhlo.input_output_alias"]:
        position = [int(number) for number in re.findall(r"-?\d+", str(entry["output_index"]).partition(":")[2])]
        argument = int(str(entry["alias"]["parameter_number"]).partition(" ")[0])
        found[position[0] if position else 0] = argument  # A lone result has no index.
    return found


def _rewrite(module: Any) -> None:
    """Make the module one that jax calls under `shard_map`."""
    copies: list[Any] = []
    collectives: list[Any] = []

    def visit(operation: Any) -> Any:
        if operation.name == "mhlo.copy":
            copies.append(operation)
        elif operation.name in _COLLECTIVES:
            collectives.append(operation)
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)
    for copy in copies:
        copy.results[0].replace_all_uses_with(copy.operands[0])
        copy.erase()
    for number, collective in enumerate(collectives, 1):
        channel = f"#stablehlo.channel_handle<handle = {number}, type = 1>"
        collective.attributes["channel_handle"] = ir.Attribute.parse(channel)
        collective.attributes["use_global_device_ids"] = ir.UnitAttr.get()
    for name in [item for item in module.operation.attributes if item.startswith("mhlo.")]:
        del module.operation.attributes[name]


def _struct(kind: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(tuple(kind.shape), _dtype(str(kind.element_type)))


def _dtype(name: str) -> Any:
    if name == "i1":
        return np.dtype(bool)
    match = _NUMBER.fullmatch(name)
    if match is None:
        raise ValueError(f"StableHLO: unknown type of a tensor's values, {name}.")
    kind, bits, part = match.groups()
    if part is not None:
        return np.dtype(f"complex{2 * int(part)}")
    if kind == "bf":
        return jax.numpy.bfloat16.dtype
    return np.dtype({"ui": "uint", "i": "int", "f": "float"}[kind] + bits)

"""Program that compiles an exported loop of steps for a TPU on a machine without one.

    python topology_compiler.py FOLDER

It reads FOLDER/request.json and the `jax.export.Exported` in FOLDER/program. It makes FOLDER/lowered when the compiler begins, and
writes FOLDER/answer.json: the attributes of a CompiledLoop, or the compiler's error. It imports nothing of this package and no
TensorFlow, and ends with the process that holds its standard input. libtpu may abort the process, so this is a separate process.
"""

import importlib.metadata
import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax import export
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding, PartitionSpec


def main(folder: Path) -> None:
    """Compile the request of a folder, and write the answer."""
    request = json.loads((folder / "request.json").read_text())
    lowered = lower_program(request, (folder / "program").read_bytes())
    # Errors before this line are not the fault of the program that is compiled.
    (folder / "lowered").touch()
    start_time = time.monotonic()
    try:
        compiled = lowered.compile()
    except jax.errors.JaxRuntimeError as error:
        answer: dict[str, Any] = {"error": str(error)}
    else:
        answer = {**describe(compiled), "seconds": time.monotonic() - start_time}
    (folder / "answer.json").write_text(json.dumps(answer))


def lower_program(request: dict[str, Any], program: bytes) -> jax.stages.Lowered:
    """Lower a program for all devices of a topology.

    Args:
        request: object with `topology` and `topology_options` (arguments of `get_topology_desc`), `axis` (name of the mesh's
            axis), `partitions` (for each argument the elements of its PartitionSpec), `donated` (indices of arguments) and
            `level` (a value of jax_optimization_level).
        program: the serialized `jax.export.Exported`.
    """
    # TensorFlow's steps have int64 values, such as the global step.
    jax.config.update("jax_enable_x64", True)
    jax.config.update("jax_optimization_level", request["level"])
    topology = topologies.get_topology_desc(request["topology"], "tpu", **request["topology_options"])
    mesh = Mesh(np.array(topology.devices), (request["axis"],))
    exported = export.deserialize(bytearray(program))
    arguments = [
        jax.ShapeDtypeStruct(spec.shape, spec.dtype, sharding=NamedSharding(mesh, PartitionSpec(*partition)))
        for spec, partition in zip(exported.in_avals, request["partitions"], strict=True)
    ]
    return jax.jit(exported.call, donate_argnums=request["donated"]).lower(*arguments)


def describe(compiled: jax.stages.Compiled) -> dict[str, object]:
    """Return the sizes (in bytes) and costs of a program on one device, by the names of CompiledLoop's attributes."""
    memory, costs = compiled.memory_analysis(), compiled.cost_analysis()
    return {
        "compiler": f"libtpu {importlib.metadata.version('libtpu')}",
        "arguments": memory.argument_size_in_bytes,
        # Results in the memory of donated arguments count as arguments.
        "outputs": memory.output_size_in_bytes - memory.alias_size_in_bytes,
        "temporaries": memory.temp_size_in_bytes,
        "code": memory.generated_code_size_in_bytes,
        "flops": costs.get("flops", 0.0),
        "bytes_accessed": costs.get("bytes accessed", 0.0),
    }


def _end_with_parent() -> None:
    """End this process once the end of stdin shows that its parent has ended."""
    sys.stdin.buffer.read()
    os._exit(1)


if __name__ == "__main__":
    threading.Thread(target=_end_with_parent, daemon=True).start()
    main(Path(sys.argv[1]))
    # Skip libtpu's shutdown, which takes a second.
    os._exit(0)

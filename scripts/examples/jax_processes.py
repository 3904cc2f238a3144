"""Train a softmax classifier in JAX on one process or several, each fed its own rows of every global batch.

python scripts/examples/jax_processes.py --data DIR --model-dir MODEL --steps 200

Several processes on one machine, or one on each host (--coordinator then names the first host):

python scripts/examples/jax_processes.py --data DIR --model-dir MODEL --steps 200 --processes 2 --process 0 &
python scripts/examples/jax_processes.py --data DIR --model-dir MODEL --steps 200 --processes 2 --process 1

DIR is a dataset of equal-sized images with labels, as `tpudata convert images` writes it. Run again with more steps, the program
continues from its last step with the batches that an uninterrupted run would have seen.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, TypeAlias

import grain.python as grain
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import tpudata

Params: TypeAlias = "dict[str, Any]"
SEED = 0


def batches(data: str, batch_size: int, process: int, processes: int) -> Any:
    """Return this process's part of every global batch, by step, endlessly reshuffled each epoch."""
    source = tpudata.RecordSource(data, "train")
    order = grain.MapDataset.source(source).seed(SEED).shuffle().repeat()
    # Global batch k holds places kB to (k + 1)B of the order for any number of processes.
    return order[process::processes].batch(batch_size // processes, drop_remainder=True)


def classes_of(data: str) -> int:
    """Return the number of classes of a dataset."""
    labels = tpudata.open_dataset(data).manifest.labels
    if labels is None:
        raise SystemExit(f"{data} has no labels. Pass a dataset with classes.")
    return labels


def loss_of(params: Params, images: Any, labels: Any) -> Any:
    """Return the mean cross-entropy of a batch: uint8 [B, height, width, channels] and int [B]."""
    rows = images.reshape(images.shape[0], -1).astype(jnp.float32) / 255
    scores = jax.nn.log_softmax(rows @ params["kernel"] + params["bias"])
    return -jnp.mean(jnp.take_along_axis(scores, labels[:, None], axis=1))


@jax.jit  # type: ignore[untyped-decorator]
def train_step(params: Params, images: Any, labels: Any) -> tuple[Params, Any]:
    """Return the parameters after one step of gradient descent, and the loss before it."""
    loss, gradients = jax.value_and_grad(loss_of)(params, images, labels)
    return jax.tree.map(lambda value, gradient: value - 0.5 * gradient, params, gradients), loss


def restored(path: Path, pixels: int, classes: int) -> tuple[Params, int]:
    """Return parameters and step of the checkpoint, or fresh ones."""
    if not path.exists():
        return {"kernel": np.zeros((pixels, classes), np.float32), "bias": np.zeros(classes, np.float32)}, 0
    with np.load(path) as found:
        return {"kernel": found["kernel"], "bias": found["bias"]}, int(found["step"])


def save(path: Path, params: Params, step: int) -> None:
    """Write the checkpoint whole: to another name first."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp.npz")
    np.savez(temporary, step=step, kernel=np.asarray(params["kernel"]), bias=np.asarray(params["bias"]))
    temporary.replace(path)


def main() -> None:
    """Parse the flags and train."""
    parser = argparse.ArgumentParser(description="Train a softmax classifier in JAX.")
    parser.add_argument("--data", required=True, help="folder of the dataset")
    parser.add_argument("--model-dir", required=True, help="folder for the checkpoint, shared by all processes")
    parser.add_argument("--steps", type=int, default=200, help="train until this step")
    parser.add_argument("--batch-size", type=int, default=64, help="rows of a global batch")
    parser.add_argument("--processes", type=int, default=1, help="number of processes")
    parser.add_argument("--process", type=int, default=0, help="number of this process, from 0")
    parser.add_argument("--coordinator", default="127.0.0.1:9876", help="HOST:PORT of process 0")
    flags = parser.parse_args()
    if flags.processes > 1:
        jax.distributed.initialize(flags.coordinator, flags.processes, flags.process)

    dataset = batches(flags.data, flags.batch_size, flags.process, flags.processes)
    pixels = dataset[0]["image"][0].size
    path = Path(flags.model_dir) / "checkpoint.npz"
    params, first = restored(path, pixels, classes_of(flags.data))

    devices = Mesh(np.array(jax.devices()), ("batch",))
    by_rows = NamedSharding(devices, PartitionSpec("batch"))
    params = jax.device_put(params, NamedSharding(devices, PartitionSpec()))
    label = next(name for name in dataset[0] if name != "image")
    for step in range(first, flags.steps):
        batch = dataset[step]
        images, labels = (jax.make_array_from_process_local_data(by_rows, batch[name]) for name in ("image", label))
        params, loss = train_step(params, images, labels)
        if flags.process == 0 and (step + 1) % 50 == 0:
            print(f"step {step + 1}: loss {float(loss):.4f}", flush=True)
    if flags.process == 0 and first < flags.steps:
        save(path, params, flags.steps)


if __name__ == "__main__":
    main()

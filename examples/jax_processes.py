"""Train a softmax classifier in JAX on one process or several, each of which reads its rows of every global batch.

python examples/jax_processes.py --data DIR --model-dir MODEL --steps 200

Several processes on one machine, or one on each host (--coordinator then names the first host):

python examples/jax_processes.py --data DIR --model-dir MODEL --steps 200 --processes 2 --process 0 &
python examples/jax_processes.py --data DIR --model-dir MODEL --steps 200 --processes 2 --process 1

DIR is a dataset of equal-sized images with labels, as `tpudata convert images` writes it. Run again with more steps, the program
continues from its last step with the batches that an uninterrupted run would have seen.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

import tpudata

Params: TypeAlias = "dict[str, Any]"
SEED = 0


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

    path = Path(flags.model_dir) / "checkpoint.npz"
    input_fn = tpudata.make_input_fn(flags.data, "train", training=True, seed=SEED)
    pixels = int(np.prod(input_fn({"batch_size": 1}).element_spec[0]["image"].shape))
    params, first = restored(path, pixels, classes_of(flags.data))

    # The rows of a batch are divided over the devices of all processes, and each device has all parameters.
    devices = jax.make_mesh((jax.device_count(),), ("data",))
    params = jax.device_put(params, NamedSharding(devices, PartitionSpec()))
    batches = tpudata.as_jax(input_fn, flags.batch_size, sharding=devices, start_step=first)
    for step, (features, labels) in zip(range(first, flags.steps), batches, strict=False):
        params, loss = train_step(params, features["image"], labels)
        if jax.default_backend() == "cpu":
            jax.block_until_ready(loss)  # Several steps at once wait for each other's reductions for ever.
        if flags.process == 0 and (step + 1) % 50 == 0:
            print(f"step {step + 1}: loss {float(loss):.4f}", flush=True)
    batches.close()
    if flags.process == 0 and first < flags.steps:
        save(path, params, flags.steps)


if __name__ == "__main__":
    main()

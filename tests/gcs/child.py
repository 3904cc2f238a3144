"""A process that uses gs:// on request: TensorFlow reads the environment when it is imported, and never again.

`Child` starts it and passes calls on; what stands below `CALLS` runs there.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import itertools
import multiprocessing
import os
from collections.abc import Callable, Iterator, Mapping
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

# A fork of a process with TensorFlow would keep that one's waits between retries and its block size.
_CONTEXT = multiprocessing.get_context("spawn")
# The batches that `open_feed` has opened.
_OPENED: list[Iterator[Any]] = []


class ChildError(Exception):
    """An error raised by a call in the child: its class and its text."""


class Child:
    """The process; end it with `close`."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._calls, calls = _CONTEXT.Pipe()
        variables = {**os.environ, **environment}
        self._process = _CONTEXT.Process(target=serve, args=(calls, variables), daemon=True)
        self._process.start()
        # Reading then fails if the process ends.
        calls.close()

    def __call__(self, name: str, *arguments: Any) -> Any:
        """Runs one of `CALLS` there; ChildError where it raises."""
        self._calls.send([name, *arguments])
        answer = self._calls.recv()
        if "error" in answer:
            raise ChildError(answer["error"])
        return answer["result"]

    def close(self) -> None:
        """Ends it."""
        self._calls.close()
        self._process.join(30)
        self._process.kill()


def noise(size: int, seed: int) -> bytes:
    """The same bytes for the same seed."""
    return np.random.default_rng(seed).bytes(size)


def digest(data: bytes) -> str:
    """Of bytes, to compare."""
    return hashlib.sha256(data).hexdigest()


def tf_write(path: str, size: int, seed: int) -> None:
    """TensorFlow writes a file."""
    with _gfile().GFile(path, "wb") as file:
        file.write(noise(size, seed))


def tf_read(path: str) -> str:
    """TensorFlow reads a file; its digest."""
    return digest(_gfile().GFile(path, "rb").read())


def tf_list(path: str) -> list[str]:
    """TensorFlow lists a folder."""
    return sorted(_gfile().listdir(path))


def tf_rename(path: str, other: str) -> None:
    """TensorFlow renames a file."""
    _gfile().rename(path, other, overwrite=True)


def tf_remove(path: str) -> None:
    """TensorFlow removes a file."""
    _gfile().remove(path)


def tf_checkpoint(prefix: str, size: int, seed: int) -> str:
    """TensorFlow writes a checkpoint and reads it; digest of what it read."""
    import tensorflow as tf

    values = np.frombuffer(noise(4 * size, seed), np.int32)
    tf.raw_ops.SaveV2(prefix=prefix, tensor_names=["a"], shape_and_slices=[""], tensors=[tf.constant(values)])
    return digest(tf.train.load_checkpoint(prefix).get_tensor("a").tobytes())


def tf_records(folder: str) -> str:
    """TensorFlow reads every shard of a folder; digest of the records."""
    import tensorflow as tf

    files = sorted(_gfile().glob(f"{folder}/*.tfrecord"))
    return digest(b"".join(tf.data.TFRecordDataset(files).as_numpy_iterator()))


def beam_files(path: str, size: int, seed: int) -> str:
    """Beam writes, renames, lists, reads and deletes a file; digest of what it read."""
    from apache_beam.io.filesystems import FileSystems
    from apache_beam.options.pipeline_options import PipelineOptions

    FileSystems.set_options(PipelineOptions(["--project=test"]))
    with FileSystems.create(path) as file:
        file.write(noise(size, seed))
    FileSystems.rename([path], [f"{path}.2"])
    (match,) = FileSystems.match([f"{path}*"])
    (found,) = (item.path for item in match.metadata_list)
    with FileSystems.open(found) as file:
        data = file.read()
    FileSystems.delete([found])
    return digest(data)


def feed(folder: str) -> str:
    """The reader feeds an epoch in order; digest of the images."""
    import tpudata

    input_fn = tpudata.make_input_fn(folder, "train", training=False)
    batches = tpudata.as_numpy(input_fn, 16)
    return digest(b"".join(features["image"].tobytes() for features, *_ in batches))


def feed_hosts(
    folder: str, training: bool, hosts: int, steps: int | None, start: int = 0, cache: str | None = None
) -> list[str]:
    """Hosts feed some global batches in pieces of a MiB, one after the other; digest of each one's images.

    A cache has a folder for each host.
    """
    import tpudata

    reading = tpudata.Reading(piece_bytes=1 << 20, streams=4, lanes=4)
    found = []
    for host in range(hosts):
        input_fn = tpudata.make_input_fn(
            folder,
            "train",
            training=training,
            seed=1,
            shuffle=64 if training else None,
            reading=reading,
            cache=False if cache is None else f"{cache}/{host}",
        )
        batches = input_fn({"batch_size": 64}, start_step=start, host_index=host, host_count=hosts)
        rows = [
            features["image"].tobytes()
            for features, *_ in batches.take(-1 if steps is None else steps).as_numpy_iterator()
        ]
        found.append(digest(b"".join(rows)))
    return found


def feed_kind(kind: str, paths: list[str], options: dict[str, Any]) -> list[list[Any]]:
    """Feed listed files of a kind without a manifest once, in order; return the values of their only feature."""
    import tpudata

    files = getattr(tpudata, kind)(paths, **options)
    batches = tpudata.make_input_fn(files, training=False)({"batch_size": 2})
    return [
        value.tolist() for batch in batches.as_numpy_iterator() for name, value in batch.items() if name != "weights"
    ]


def feed_files(pattern: str) -> str:
    """Feed the images of TFRecord files without a manifest once, in order, in pieces of a MiB; return their digest."""
    import tpudata
    from tpudata.format import Feature

    image = Feature("image_raw", "bytes", "uint8", (100, 100, 1), "raw")
    files = tpudata.TFRecordFiles(pattern, features=[image])
    reading = tpudata.Reading(piece_bytes=1 << 20, streams=4)
    batches = tpudata.make_input_fn(files, training=False, reading=reading)({"batch_size": 64})
    return digest(b"".join(features["image"].tobytes() for features in batches.as_numpy_iterator()))


def open_feed(folder: str, training: bool) -> None:
    """Open a dataset in pieces of a MiB, to feed batches of one host by `feed_on`."""
    import tpudata

    reading = tpudata.Reading(piece_bytes=1 << 20, streams=4, lanes=4)
    input_fn = tpudata.make_input_fn(
        folder, "train", training=training, seed=1, shuffle=64 if training else None, reading=reading
    )
    _OPENED[:] = [iter(tpudata.as_numpy(input_fn, 64))]


def feed_on(batches: int) -> int:
    """Feed up to so many more batches of what `open_feed` has opened; return their number."""
    return sum(1 for _ in itertools.islice(_OPENED[0], batches))


def restore_feed(folder: str, batches: int) -> list[str]:
    """Save the iterator of an evaluation after some batches; return digests of what follows in it, and in a restored one."""
    import tempfile

    import tensorflow as tf

    import tpudata

    reading = tpudata.Reading(piece_bytes=1 << 20, streams=4)
    dataset = tpudata.make_input_fn(folder, "train", training=False, reading=reading)({"batch_size": 64})
    saved, restored = iter(dataset), iter(dataset)
    for _ in range(batches):
        next(saved)
    with tempfile.TemporaryDirectory() as checkpoints:
        path = tf.train.Checkpoint(iterator=saved).save(f"{checkpoints}/c")
        tf.train.Checkpoint(iterator=restored).restore(path)
    return [
        digest(b"".join(features["image"].numpy().tobytes() for features, *_ in iterator))
        for iterator in (saved, restored)
    ]


def export(model_dir: str, base: str) -> list[int]:
    """Exports the trained model, loads what was written, and asks it; shape of what it answers."""
    import tensorflow as tf

    from tpudata.estimator import RunConfig, TPUEstimator
    from tpudata.estimator.export import ServingInputReceiver
    from tpudata.models import get_model

    def receiver() -> ServingInputReceiver:
        images = tf.compat.v1.placeholder(tf.uint8, [None, 8, 8, 1])
        return ServingInputReceiver({"image": images}, {"image": images})

    estimator = TPUEstimator(
        model_fn=get_model("mnist_cnn"),
        model_dir=model_dir,
        config=RunConfig(),
        params={"num_classes": 10, "seed": 0},
        use_tpu=False,
        train_batch_size=16,
        predict_batch_size=16,
    )
    path = estimator.export_saved_model(base, receiver)
    signature = tf.saved_model.load(path.decode()).signatures["serving_default"]
    return list(signature(image=tf.zeros([3, 8, 8, 1], tf.uint8))["probabilities"].shape)


def command(*argv: str) -> list[Any]:
    """The command tpudata; its exit code and what it printed, on both."""
    from tpudata.cli import main

    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        code = main(argv)
    return [code, printed.getvalue()]


def _gfile() -> Any:
    import tensorflow as tf

    return tf.io.gfile


CALLS: dict[str, Callable[..., Any]] = {
    function.__name__: function
    for function in (
        tf_write,
        tf_read,
        tf_list,
        tf_rename,
        tf_remove,
        tf_checkpoint,
        tf_records,
        beam_files,
        feed,
        feed_hosts,
        feed_files,
        feed_kind,
        open_feed,
        feed_on,
        restore_feed,
        export,
        command,
    )
}


def serve(calls: Connection, environment: Mapping[str, str]) -> None:
    """Do the calls that come, and answer each with its result or its error, in a process with an environment."""
    os.environ.clear()
    os.environ.update(environment)
    # Discard the output of libraries.
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for descriptor in (1, 2):
        os.dup2(nowhere, descriptor)
    from google.cloud.storage.retry import DEFAULT_RETRY

    import tpudata.storage.select as select
    from tpudata.storage.gcs import GcsStorage
    from tpudata.storage.objects.retries import RetryPolicy

    # Shorter waits than for a real store.
    storage = GcsStorage(RetryPolicy(first_wait=0.02, longest_wait=0.2, limit=30))
    select._make_storage = lambda _scheme: storage  # type: ignore[assignment]
    # Beam uses the waits of Google's client.
    DEFAULT_RETRY._initial = 0.02
    while True:
        try:
            name, *arguments = calls.recv()
        except EOFError:
            return
        try:
            answer = {"result": CALLS[name](*arguments)}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        calls.send(answer)

"""Programs of scripts/reader_tf215 for TensorFlow 2.15: the original TPUEstimator, TPUContext and a session, fed by the reader."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from tensorflow_estimator.python.estimator.tpu.tpu_context import TPUContext

import tpudata
from tpudata.format import Feature, Manifest, Source, Split, encode_example, shard_name, write_metadata, write_shard

FEATURES = (
    Feature("image_raw", "bytes", "uint8", (4, 4, 1), "raw"),
    Feature("label", "int64", "int64", num_classes=4),
)
RECORDS, BATCH = 103, 20


class Row(NamedTuple):
    """A number that was counted, and what it should be."""

    name: str
    found: Any
    wanted: Any


def write(folder: str) -> tuple[Any, Any]:
    """Write a dataset of 103 records in two shards; return its images and labels."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 4, RECORDS)
    images = rng.integers(0, 100, (RECORDS, 4, 4, 1)).astype(np.uint8)
    images[np.arange(RECORDS), labels, 0, 0] += 120
    records = [encode_example({"image_raw": i.tobytes(), "label": int(y)}) for i, y in zip(images, labels)]  # noqa: B905
    parts = (records[:60], records[60:])
    shards = [write_shard(folder, shard_name("train", n, 2), part) for n, part in enumerate(parts)]
    split = {"train": Split(tuple(shards))}
    manifest = Manifest("raw", split, FEATURES, Source("numbers", RECORDS, 0, ""), "reader_tf215", 4)
    write_metadata(folder, manifest, list("abcd"))
    return images, labels


def model_fn(features: Any, labels: Any, mode: str, params: Any) -> Any:  # noqa: ARG001
    """Build a linear classifier, as a program for the original does."""
    v1 = tf.compat.v1
    logits = v1.layers.dense(v1.layers.flatten(features["image"]), 4)
    if mode == "infer":
        return v1.estimator.tpu.TPUEstimatorSpec(mode, predictions={"logits": logits})
    weights = features.get("weights", 1.0)
    loss = v1.losses.sparse_softmax_cross_entropy(labels, logits, weights)
    if mode == "eval":

        def metrics(labels: Any, logits: Any, weights: Any) -> Any:
            found = tf.argmax(logits, 1, output_type=tf.int32)
            return {
                "accuracy": v1.metrics.accuracy(labels, found, weights),
                "mean_label": v1.metrics.mean(labels, weights),
            }

        return v1.estimator.tpu.TPUEstimatorSpec(
            mode, loss=loss, eval_metrics=(metrics, [labels, logits, features["weights"]])
        )
    train_op = v1.train.AdamOptimizer(0.01).minimize(loss, v1.train.get_global_step())
    return v1.estimator.tpu.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)


def estimator_rows(folder: str, images: Any, labels: Any) -> Iterator[Row]:
    """Trains, evaluates and predicts with the original TPUEstimator."""
    v1 = tf.compat.v1
    estimator = v1.estimator.tpu.TPUEstimator(
        model_fn,
        config=v1.estimator.tpu.RunConfig(model_dir=f"{folder}/model"),
        use_tpu=False,
        train_batch_size=BATCH,
        eval_batch_size=BATCH,
        predict_batch_size=BATCH,
    )
    train = tpudata.make_input_fn(folder, "train", training=True, images=tpudata.Images(dtype="float32"), seed=1)
    test = tpudata.make_input_fn(folder, "train", training=False, images=tpudata.Images(dtype="float32"))
    estimator.train(train, steps=100)
    result = estimator.evaluate(test)
    kernel, bias = (estimator.get_variable_value(f"dense/{name}") for name in ("kernel", "bias"))
    logits = images.reshape(RECORDS, 16).astype(np.float32) / np.float32(255) @ kernel + bias
    yield Row("steps trained", int(result["global_step"]), 100)
    yield Row(
        "accuracy of 103 records in batches of 20", float(result["accuracy"]), (logits.argmax(1) == labels).mean()
    )
    yield Row("mean label", float(result["mean_label"]), labels.mean())
    found = np.stack([row["logits"] for row in estimator.predict(test)])
    yield Row("rows predicted, the last batch padded", len(found), 120)
    yield Row("largest difference of a prediction", float(np.abs(found[:RECORDS] - logits).max()), 0.0)


def context_rows(folder: str, labels: Any) -> Iterator[Row]:
    """Call input_fn with the original's TPUContext, as its calls on 1, 2 and 3 hosts and for each of 4 cores do."""
    test = tpudata.make_input_fn(folder, "train", training=False)
    for name, hosts, mode, calls in (
        ("1 host", 1, "PER_HOST_V1", 1),
        ("2 hosts", 2, "PER_HOST_V1", 2),
        ("3 hosts", 3, "PER_HOST_V1", 3),
        ("4 cores", 2, "PER_SHARD_V1", 4),
        ("2 hosts, a batch for each of 4 cores", 2, "PER_HOST_V2", 2),
    ):
        internal = types.SimpleNamespace(
            is_input_sharded_per_core=lambda mode=mode: mode == "PER_SHARD_V1",
            is_input_per_host_with_iterators=lambda mode=mode: mode == "PER_HOST_V2",
            is_input_broadcast_with_iterators=lambda: False,
            is_replica_across_hosts=lambda: False,
            num_hosts=hosts,
            num_of_replicas_per_host=2,
        )
        seen, steps = [], set()
        for call in range(calls):
            context = TPUContext(internal, input_device="/cpu:0", invocation_index=call, host_id=call)
            batches = list(test({"batch_size": 8, "context": context}).as_numpy_iterator())
            steps.add(len(batches))
            seen += [int(y) for x, ys in batches for y, w in zip(ys, x["weights"]) if w]  # noqa: B905
        yield Row(f"records through TPUContext, {name}", len(seen), RECORDS)
        yield Row(f"their labels' sum, {name}", sum(seen), int(labels.sum()))
        yield Row(f"different numbers of batches, {name}", len(steps), 1)


def session_rows(folder: str, labels: Any) -> Iterator[Row]:
    """Goes through the dataset in a session of TensorFlow 1."""
    test = tpudata.make_input_fn(folder, "train", training=False)
    total = count = 0.0
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        batch = tf.compat.v1.data.make_one_shot_iterator(test({"batch_size": BATCH})).get_next()
        while True:
            try:
                features, found = session.run(batch)
            except tf.errors.OutOfRangeError:
                break
            total += float((features["weights"] * found).sum())
            count += float(features["weights"].sum())
    yield Row("records in a session", count, RECORDS)
    yield Row("their labels' sum", total, labels.sum())


def main(folder: str) -> int:
    """Print a table of all rows; return 1 if a number is not the expected one."""
    images, labels = write(folder)
    print(f"TensorFlow {tf.__version__}, numpy {np.__version__}, Python {sys.version.split()[0]}\n")
    print("| what | found | plain numpy |\n|---|---|---|")
    wrong = 0
    for rows in (
        estimator_rows(folder, images, labels),
        context_rows(folder, labels),
        session_rows(folder, labels),
    ):
        for row in rows:
            wrong += not np.isclose(row.found, row.wanted, rtol=1e-6, atol=1e-5)
            print(f"| {row.name} | {row.found:.6g} | {row.wanted:.6g} |", flush=True)
    print(f"\n{wrong} differ")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))

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
    """A number of a program, and the expected number."""

    name: str
    result: Any
    expected: Any


def write_dataset(folder: str) -> tuple[Any, Any]:
    """Write a dataset of 103 records in two shards; return its images, uint8 [103, 4, 4, 1], and labels, int64 [103]."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 4, RECORDS)
    images = rng.integers(0, 100, (RECORDS, 4, 4, 1)).astype(np.uint8)
    # The pixel in the label's row is brighter, so that a linear model learns the label.
    images[np.arange(RECORDS), labels, 0, 0] += 120
    records = [
        encode_example({"image_raw": image.tobytes(), "label": int(label)})
        for image, label in zip(images, labels)  # noqa: B905
    ]
    parts = (records[:60], records[60:])
    shards = [write_shard(folder, shard_name("train", number, 2), part) for number, part in enumerate(parts)]
    splits = {"train": Split(tuple(shards))}
    manifest = Manifest(
        "raw",
        splits,
        FEATURES,
        Source("numbers", RECORDS, bytes=0, fingerprint=""),
        created_by="reader_tf215",
        labels=4,
    )
    write_metadata(folder, manifest, list("abcd"))
    return images, labels


def model_fn(features: Any, labels: Any, mode: str, params: Any) -> Any:  # noqa: ARG001
    """Build a linear classifier, as a program for the original does."""
    v1 = tf.compat.v1
    logits = v1.layers.dense(v1.layers.flatten(features["image"]), 4)
    if mode == "infer":
        return v1.estimator.tpu.TPUEstimatorSpec(mode, predictions={"logits": logits})
    # Training has no weights, as no batch is padded.
    weights = features.get("weights", 1.0)
    loss = v1.losses.sparse_softmax_cross_entropy(labels, logits, weights)
    if mode == "eval":

        def metrics(labels: Any, logits: Any, weights: Any) -> Any:
            predicted = tf.argmax(logits, 1, output_type=tf.int32)
            return {
                "accuracy": v1.metrics.accuracy(labels, predicted, weights),
                "mean_label": v1.metrics.mean(labels, weights),
            }

        return v1.estimator.tpu.TPUEstimatorSpec(
            mode, loss=loss, eval_metrics=(metrics, [labels, logits, features["weights"]])
        )
    train_op = v1.train.AdamOptimizer(0.01).minimize(loss, v1.train.get_global_step())
    return v1.estimator.tpu.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)


def run_estimator(folder: str, images: Any, labels: Any) -> Iterator[Row]:
    """Train, evaluate and predict with the original TPUEstimator; yield the results."""
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
    metrics = estimator.evaluate(test)
    kernel, bias = (estimator.get_variable_value(f"dense/{name}") for name in ("kernel", "bias"))
    expected_logits = images.reshape(RECORDS, 16).astype(np.float32) / np.float32(255) @ kernel + bias
    expected_accuracy = (expected_logits.argmax(1) == labels).mean()
    yield Row("steps trained", int(metrics["global_step"]), 100)
    yield Row("accuracy of 103 records in batches of 20", float(metrics["accuracy"]), expected_accuracy)
    yield Row("mean label", float(metrics["mean_label"]), labels.mean())
    logits = np.stack([row["logits"] for row in estimator.predict(test)])
    yield Row("rows predicted, the last batch padded", len(logits), 120)
    yield Row("largest difference of a prediction", float(np.abs(logits[:RECORDS] - expected_logits).max()), 0.0)


def run_with_contexts(folder: str, labels: Any) -> Iterator[Row]:
    """Call input_fn with the original's TPUContext, as the original does on 1, 2 and 3 hosts and for each of 4 cores."""
    test = tpudata.make_input_fn(folder, "train", training=False)
    for name, hosts, mode, calls in (
        ("1 host", 1, "PER_HOST_V1", 1),
        ("2 hosts", 2, "PER_HOST_V1", 2),
        ("3 hosts", 3, "PER_HOST_V1", 3),
        ("4 cores", 2, "PER_SHARD_V1", 4),
        ("2 hosts, a batch for each of 4 cores", 2, "PER_HOST_V2", 2),
    ):
        # All that TPUContext reads of the original's internal context.
        internal = types.SimpleNamespace(
            is_input_sharded_per_core=lambda mode=mode: mode == "PER_SHARD_V1",
            is_input_per_host_with_iterators=lambda mode=mode: mode == "PER_HOST_V2",
            is_input_broadcast_with_iterators=lambda: False,
            is_replica_across_hosts=lambda: False,
            num_hosts=hosts,
            num_of_replicas_per_host=2,
        )
        # Labels of all calls without padding, and the different numbers of batches of the calls.
        read_labels, batch_counts = [], set()
        for call in range(calls):
            context = TPUContext(internal, input_device="/cpu:0", invocation_index=call, host_id=call)
            batches = list(test({"batch_size": 8, "context": context}).as_numpy_iterator())
            batch_counts.add(len(batches))
            for features, batch_labels in batches:
                read_labels += batch_labels[features["weights"] > 0].tolist()
        yield Row(f"records through TPUContext, {name}", len(read_labels), RECORDS)
        yield Row(f"their labels' sum, {name}", sum(read_labels), int(labels.sum()))
        yield Row(f"different numbers of batches, {name}", len(batch_counts), 1)


def run_in_session(folder: str, labels: Any) -> Iterator[Row]:
    """Read the dataset in a session of TensorFlow 1."""
    test = tpudata.make_input_fn(folder, "train", training=False)
    label_sum = count = 0.0
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        batch = tf.compat.v1.data.make_one_shot_iterator(test({"batch_size": BATCH})).get_next()
        while True:
            try:
                features, batch_labels = session.run(batch)
            except tf.errors.OutOfRangeError:
                break
            label_sum += float((features["weights"] * batch_labels).sum())
            count += float(features["weights"].sum())
    yield Row("records in a session", count, RECORDS)
    yield Row("their labels' sum", label_sum, labels.sum())


def main(folder: str) -> int:
    """Print a table of all rows; return 1 if a number is not the expected one."""
    images, labels = write_dataset(folder)
    print(f"TensorFlow {tf.__version__}, numpy {np.__version__}, Python {sys.version.split()[0]}\n")
    print("| what | found | plain numpy |\n|---|---|---|")
    different = 0
    for rows in (
        run_estimator(folder, images, labels),
        run_with_contexts(folder, labels),
        run_in_session(folder, labels),
    ):
        for row in rows:
            different += not np.isclose(row.result, row.expected, rtol=1e-6, atol=1e-5)
            print(f"| {row.name} | {row.result:.6g} | {row.expected:.6g} |", flush=True)
    print(f"\n{different} differ")
    return int(different > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))

"""The program of scripts/oracle_tf215 that exports models, with every kind of receiver and output."""

from __future__ import annotations

import tensorflow.compat.v1 as tf
from model import FLAT, SIDE, base, copy_start, dense, input_fn, make_estimator, make_model_fn


def record_signatures(path):
    """Return the names of an exported model's signatures, and for each its inputs and the outputs for the first 5 rows."""
    # `export_saved_model` returns bytes.
    loaded = tf.saved_model.load_v2(path.decode())
    record = {"signatures": sorted(loaded.signatures)}
    examples = [
        tf.train.Example(
            features=tf.train.Features(feature={"flat": tf.train.Feature(float_list=tf.train.FloatList(value=row))})
        ).SerializeToString()
        for row in FLAT[:5]
    ]
    for name, signature in loaded.signatures.items():
        # (positional arguments, which signatures do not have; inputs by name)
        _, inputs = signature.structured_input_signature
        record[f"inputs/{name}"] = {key: [spec.dtype.name, str(spec.shape)] for key, spec in sorted(inputs.items())}
        is_text = any(spec.dtype == tf.string for spec in inputs.values())
        values = examples if is_text else FLAT[:5]
        outputs = signature(**{key: tf.constant(values) for key in inputs})
        record |= {f"outputs/{name}/{key}": value.numpy() for key, value in outputs.items()}
    return record


def export(folder):
    """Export a model with each kind of receiver and outputs, and record its signatures."""
    copy_start(folder / "model")
    predict, classify, regress = (
        getattr(base.export, f"{kind}Output") for kind in ("Predict", "Classification", "Regression")
    )

    def several(logits):
        return {
            "serving_default": predict({"logits": logits}),
            "classify": classify(scores=tf.nn.softmax(logits), classes=tf.as_string(tf.argsort(logits))),
            "regress": regress(logits[:, 0]),
        }

    raw = base.export.build_raw_serving_input_receiver_fn({"flat": tf.zeros([1, 16])})
    # The original names its placeholder after the tensor's operation, which only tensors of a graph have.
    if SIDE == "original":
        with tf.Graph().as_default():
            raw = base.export.build_raw_serving_input_receiver_fn({"flat": tf.placeholder(tf.float32, [None, 16])})
    parsing = base.export.build_parsing_serving_input_receiver_fn({"flat": tf.io.FixedLenFeature([16], tf.float32)})

    def bare():
        flat = tf.placeholder(tf.float32, [None, 16])
        return base.export.ServingInputReceiver(flat, flat)

    def tensor():
        flat = tf.placeholder(tf.float32, [None, 16])
        return base.export.TensorServingInputReceiver(flat, flat)

    # Receivers pass the tensor as `flat`, as `feature`, or bare.
    def any_features(features, training):
        if not isinstance(features, dict):
            features = {"flat": features}
        return dense({"flat": features.get("flat", features.get("feature"))}, training)

    make_estimator(folder / "model", make_model_fn()).train(input_fn, steps=5)
    record = {}
    for name, receiver, outputs in (
        ("predictions", raw, None),
        ("one output", raw, lambda logits: {"only": predict(logits)}),
        ("several", parsing, several),
        ("several raw", raw, several),
        ("bare", bare, None),
        ("tensor", tensor, None),
    ):
        estimator = make_estimator(folder / "model", make_model_fn(any_features, outputs=outputs))
        path = estimator.export_saved_model(str(folder / "export" / name.replace(" ", "_")), receiver)
        record[f"{name}/type of the result"] = type(path).__name__
        record |= {f"{name}/{key}": value for key, value in record_signatures(path).items()}
    return record

"""Functions of TensorFlow on the chips of a TPU, without an estimator."""

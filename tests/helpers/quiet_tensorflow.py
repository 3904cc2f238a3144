"""TensorFlow without its messages, and this package's reader and trainer: what tests/helpers/forked.py forks from."""

import os

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import tensorflow  # noqa: F401

import tpudata.estimator
import tpudata.input  # noqa: F401

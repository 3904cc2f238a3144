"""TensorFlow without its messages, and this package's reader and trainer: what tests/helpers/forked.py forks from."""

import gc
import os

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
# A third of the import's time.
gc.disable()
import tensorflow  # noqa: F401

import tpudata.estimator
import tpudata.input  # noqa: F401

gc.freeze()
gc.enable()

"""TensorFlow without its messages, and this package's reader and trainer: what tests/helpers/forked.py forks from."""

import gc
import os

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
# The collector takes a fifth of the import's time.
gc.disable()
try:
    import tensorflow  # noqa: F401

    import tpudata.estimator
    import tpudata.input  # noqa: F401
finally:
    gc.freeze()
    gc.enable()

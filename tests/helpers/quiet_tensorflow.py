"""TensorFlow, imported without its messages: what tests/helpers/forked.py forks from."""

import os

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import tensorflow  # noqa: F401

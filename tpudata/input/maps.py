"""How the functions of a dataset run."""

from __future__ import annotations

import tensorflow as tf

# Functions without Python control flow over tensors; AutoGraph would take a second to convert those of the first dataset.
as_written = tf.autograph.experimental.do_not_convert
PARALLEL = {"num_parallel_calls": tf.data.AUTOTUNE, "deterministic": True}

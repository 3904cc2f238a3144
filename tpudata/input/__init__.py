"""The reader library: datasets on disk become batches that a TPU takes. Needs TensorFlow.

The way of a record: shards -> serialised records (source) -> parsed and decoded in chunks (parse, image) -> cached (cache)
-> the user's transform -> batches of one static shape (batch). `input_fn` puts these in order.
"""

from tpudata._tensorflow import require_tensorflow

require_tensorflow("tpudata.input (make_input_fn)")

from tpudata.input.input_fn import make_input_fn  # noqa: E402

__all__ = ["make_input_fn"]

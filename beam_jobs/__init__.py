"""Beam jobs that convert raw data into TFRecord shards: source, plan, shard, metadata. Never imports TensorFlow."""

import logging

# Where Beam's [gcp] extra is not installed, `import apache_beam` warns of it on the root logger. Whoever needs the extra is told
# by the runner or the storage that does.
_disabled = logging.root.manager.disable
logging.disable(logging.WARNING)
try:
    import apache_beam  # noqa: F401
finally:
    logging.disable(_disabled)

from beam_jobs.write_examples import WriteTFRecordShards  # noqa: E402

__all__ = ["WriteTFRecordShards"]

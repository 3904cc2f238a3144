"""Beam jobs that convert raw data into TFRecord shards: source, plan, shard, metadata. Never imports TensorFlow."""

import logging
import warnings

# Where Beam's [gcp] extra is not installed, `import apache_beam` warns of it on the root logger. Whoever needs the extra is told
# by the runner or the storage that does.
_disabled = logging.root.manager.disable
logging.disable(logging.WARNING)
try:
    with warnings.catch_warnings():
        # Google's client library warns of Python 3.10's age, which is nothing that a person here has asked about.
        warnings.filterwarnings("ignore", category=FutureWarning, message=".*Python version.*")
        import apache_beam  # noqa: F401
finally:
    logging.disable(_disabled)

from beam_jobs.write_examples import WriteTFRecordShards  # noqa: E402

__all__ = ["WriteTFRecordShards"]

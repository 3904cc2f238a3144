"""Google Cloud Storage."""

from tpudata.storage.gcs.gcs_storage import GcsStorage

__all__ = ["GcsStorage"]

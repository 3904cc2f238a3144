"""Parquet files with images."""

from beam_jobs.sources.parquet.source import ParquetImages

__all__ = ["ParquetImages"]

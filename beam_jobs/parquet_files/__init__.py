"""Parquet files: checked before pyarrow reads them, and read in batches of bounded size."""

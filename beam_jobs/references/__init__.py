"""References to records, which travel through the pipeline instead of their bytes."""

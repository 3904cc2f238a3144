"""References to records: what travels through the pipeline in place of their bytes."""

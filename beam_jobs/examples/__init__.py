"""`WriteTFRecordShards`: datasets from the examples of any Beam pipeline."""

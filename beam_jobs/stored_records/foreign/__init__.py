"""TFRecords of other programs: what their features are."""

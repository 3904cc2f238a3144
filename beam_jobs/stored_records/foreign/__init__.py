"""TFRecords of other programs: their features, from the records, from flags and from TFDS metadata."""

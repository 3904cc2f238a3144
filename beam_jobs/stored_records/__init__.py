"""Records that are TFRecords already: those of datasets and of other programs, for `tpudata reshard`."""

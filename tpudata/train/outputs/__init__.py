"""Files and tables that a run writes: predictions, the record of its configuration, the closing table."""

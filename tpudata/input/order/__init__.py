"""Which record stands in which row of which batch."""

"""Fields: what is read of the records of a dataset, and its static shapes."""

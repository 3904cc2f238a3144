"""Adding to a dataset: what it was made from, and what an input has beyond that."""

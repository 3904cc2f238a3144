"""The manifest of a dataset, and the features that it describes."""

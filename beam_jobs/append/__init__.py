"""Appending to a dataset: the inputs that it was made from, and the new ones."""

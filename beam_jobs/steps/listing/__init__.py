"""Listing the inputs: from a source to packs of references."""

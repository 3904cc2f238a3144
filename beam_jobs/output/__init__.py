"""The output folder: what may be in it, which run may write to it, and which inputs were rejected."""

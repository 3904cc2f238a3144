"""Decoding of serialised records to tensors."""

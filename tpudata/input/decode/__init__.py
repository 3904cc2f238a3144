"""Decoding of serialized records to tensors."""

"""Compressed streams: recognised by their first bytes, and unpacked in pieces of bounded size."""

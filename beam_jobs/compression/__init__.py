"""Compressed files, unpacked in pieces of bounded size."""

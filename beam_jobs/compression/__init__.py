"""Compressed files, decompressed in pieces of bounded size."""

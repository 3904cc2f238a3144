"""Kinds and values of columns and fields, as flags, lists and text files write them."""

"""Texts of errors: messages of libraries, and errors of tpudata that are found in them."""

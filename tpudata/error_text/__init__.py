"""Texts of errors: those of libraries, and errors of tpudata in them."""

"""Verification of datasets: every byte, checksum, count and record."""

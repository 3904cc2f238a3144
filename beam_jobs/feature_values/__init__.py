"""Conversion of values from users and inputs to the values that records store."""

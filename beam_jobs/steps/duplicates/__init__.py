"""Inputs with the same key, and documents with the same text."""

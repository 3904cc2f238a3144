"""Positions of documents in bytes: lines, paragraphs, rows, elements of arrays, and texts between separators."""

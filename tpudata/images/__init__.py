"""Encoded images: their formats and headers, their pixels with Pillow, and whether they are what a feature says."""

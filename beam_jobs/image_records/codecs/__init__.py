"""Encoded images: their formats and headers, and their pixels with Pillow."""

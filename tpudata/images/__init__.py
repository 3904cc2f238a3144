"""Encoded images: formats, headers, pixels with Pillow, and checks against features."""

"""The version, in one place: setup.py reads it without importing the package."""

__version__ = "0.2.0"

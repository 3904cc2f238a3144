"""The steps of a conversion: one Beam transform a module."""

"""Programs compiled for a TPU on a machine without one, and what they cost."""

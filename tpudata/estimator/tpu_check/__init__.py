"""A rehearsal for a TPU on this machine."""

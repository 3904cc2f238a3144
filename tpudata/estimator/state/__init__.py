"""Variables and checkpoints."""

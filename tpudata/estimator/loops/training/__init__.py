"""The loop of training, and the work that is due between two loops of the device."""

"""One program for all devices: lowered by TensorFlow, compiled and run by PJRT (jax)."""

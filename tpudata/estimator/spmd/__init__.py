"""Steps on several devices: lowered by TensorFlow, compiled and run by PJRT (jax) as one program."""

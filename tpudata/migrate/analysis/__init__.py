"""Analysis of files: their names of TensorFlow, its release, sessions and guards."""

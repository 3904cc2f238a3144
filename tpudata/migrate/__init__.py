"""Rewriting of programs for the original TPUEstimator to current names. Never imports TensorFlow."""

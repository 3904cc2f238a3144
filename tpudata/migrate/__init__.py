"""Rewriting of programs for TensorFlow's TPUEstimator to current names. Never imports TensorFlow."""

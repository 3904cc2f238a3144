"""Rewriting programs for the original TPUEstimator: the names of TensorFlow 1 that have another name today. No TensorFlow."""

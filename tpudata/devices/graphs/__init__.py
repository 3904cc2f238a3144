"""Graphs of TensorFlow, rewritten as the code of one of several replicas."""

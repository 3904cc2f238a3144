"""Graphs of input_fns that return tensors, and tf.functions of nested arguments."""

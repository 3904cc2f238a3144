"""A model_fn's scratch graph, and Keras' marks on it."""

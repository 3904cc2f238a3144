"""Reading of a split's records in a TensorFlow graph: from files or a cache, in any order."""

"""The compiled steps of the modes: a traced model_fn, run on real variables and batches."""

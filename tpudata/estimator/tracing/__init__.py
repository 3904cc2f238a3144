"""A model_fn built into steps."""

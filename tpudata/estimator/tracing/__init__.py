"""A model_fn traced in a scratch graph: its effects, metrics, host_call and optimizer."""

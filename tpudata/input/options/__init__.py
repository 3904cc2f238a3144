"""How records are fed: what `make_input_fn` is asked for."""

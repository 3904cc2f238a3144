"""Options of feeding: the arguments of `make_input_fn`."""

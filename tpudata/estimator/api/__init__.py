"""What a model_fn is called with and returns: modes, specs and export outputs, and the errors of the estimator."""

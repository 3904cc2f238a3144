"""Arguments and results of a model_fn: modes, specs and export outputs; and the errors of the estimator."""

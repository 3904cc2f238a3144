"""Training of the bundled models: their params, learning rates and optimizers."""

"""Training of the bundled models: params, losses, learning rates and optimizers."""

"""The loops on the host: train, evaluate and predict."""

"""Configuration: RunConfig, TPUConfig, the devices and session options in them, and checks of an estimator's arguments."""
